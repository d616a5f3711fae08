#include "kvtier/shared/shared_folder.h"

#include "kvtier/blocks.h"
#include "kvtier/checksum.h"
#include "kvtier/file_head.h"
#include "kvtier/file_names.h"
#include "kvtier/read_task.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <random>
#include <utility>

namespace kvtier {

static constexpr char incoming[]       = "incoming";
static constexpr char mark_name[]      = "llama-run.shared";
static constexpr char mark_text[]      =
    "Servers of llama-run share this folder. Without this file they take it for one that is not mounted.\n";
static constexpr char segment_suffix[] = ".seg";
static constexpr char anchor_suffix[]  = ".anc";
static constexpr size_t suffix_size    = 4;

// So much goes through one call: a call that takes long should be one that hangs.
static constexpr uint64_t call_bytes = uint64_t(1) << 20;

// So much is synced at once, for the same reason.
static constexpr uint64_t sync_bytes = uint64_t(4) << 20;

static constexpr uint64_t max_text = 4096;

uint64_t shared_copy::bytes() const {
    uint64_t n = head.size();
    for (const blob & part : payload) {
        n += part->size();
    }
    return n;
}

std::string backend_folder(const std::string & backend) {
    std::string out;
    for (const char c : backend.substr(0, 32)) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte) != 0 && byte < 0x80) {
            out += static_cast<char>(std::tolower(byte));
        }
    }
    return out.empty() ? "unknown" : out;
}

static std::string folder_of(const shared_place & place) {
    return names::join(names::join(hex(place.fingerprint), place.backend), hex(place.name_space));
}

std::string shared_name::path() const {
    const std::string number = hex(static_cast<uint64_t>(at));
    return names::join(folder_of(place), hex(k) + "-" + number.substr(8) + (is_anchor ? anchor_suffix : segment_suffix));
}

// The last part of a path.
static bool parse_name(const std::string & text, shared_name & out) {
    constexpr size_t key_size = 32;
    constexpr size_t at_size  = 8;
    if (text.size() != key_size + 1 + at_size + suffix_size || text[key_size] != '-') {
        return false;
    }
    const std::string suffix = text.substr(text.size() - suffix_size);
    uint64_t          at     = 0;
    if (!parse_hex(text.substr(0, key_size), out.k) || !parse_hex("00000000" + text.substr(key_size + 1, at_size), at) ||
        (suffix != segment_suffix && suffix != anchor_suffix)) {
        return false;
    }
    out.at        = static_cast<uint32_t>(at);
    out.is_anchor = suffix == anchor_suffix;
    return true;
}

static std::string random_hex() {
    static thread_local std::mt19937_64 source{ std::random_device{}() };
    return hex(source());
}

// How large a file in incoming/ will be.
static bool parse_incoming(const std::string & name, uint64_t & size) {
    uint64_t number = 0;
    return name.size() == 33 && name[16] == '-' && parse_hex(name.substr(0, 16), number) && parse_hex(name.substr(17), size) &&
           size <= format::max_file_size;
}

std::string shared_folder::path_of(const shared_name & name) const {
    return names::join(root, name.path());
}

status shared_folder::prepare(bool was_used, bool & is_marked) {
    std::vector<dir_entry> entries;
    if (status s = e.list_dir(root, entries); !s.is_ok()) {
        return s.is_miss() ? status::io_error(root + ": there is no such folder; make it, or mount what belongs there") : s;
    }
    is_marked = std::any_of(entries.begin(), entries.end(), [](const dir_entry & entry) { return entry.name == mark_name; });
    if (was_used && !is_marked) {
        return status::io_error(root + ": its file " + mark_name +
                                " is gone: mount what belongs there, or make the file anew if the folder was emptied");
    }
    if (status s = e.make_dir(names::join(root, incoming)); !s.is_ok()) {
        return s;
    }
    is_marked = is_marked || write_text(mark_name, mark_text).is_ok(); // A folder that can only be read is of use without it.
    return status::ok();
}

static bool is_backend(const std::string & name) {
    return name == backend_folder(name);
}

// What a folder has. One that has gone since has nothing; one that cannot be read is counted, and does not keep others from
// being read.
static std::vector<dir_entry> entries_of(env & e, const std::string & path, shared_listing & out) {
    std::vector<dir_entry> entries;
    if (const status s = e.list_dir(path, entries); !s.is_ok() && !s.is_miss()) {
        out.problem = out.unreadable.empty() ? s.message() : out.problem;
        out.unreadable.push_back(path);
    }
    return entries;
}

// Calls `found` for each folder in one that is there.
template <typename Found>
static void each_folder(env & e, const std::string & path, shared_listing & out, const Found & found) {
    for (const dir_entry & entry : entries_of(e, path, out)) {
        if (entry.type == file_type::folder) {
            found(entry.name);
        }
    }
}

status shared_folder::list(shared_listing & out) {
    std::vector<dir_entry> entries;
    if (status s = e.list_dir(names::join(root, incoming), entries); !s.is_ok()) {
        return s;
    }
    for (const dir_entry & entry : entries) {
        uint64_t size = 0;
        if (entry.type == file_type::file && parse_incoming(entry.name, size)) {
            out.unfinished.push_back({ entry.name, entry.size, entry.modified_ms });
            out.bytes_claimed += disk_size(size);
        }
    }
    out.bytes = out.bytes_claimed;
    each_folder(e, root, out, [&](const std::string & model) {
        shared_name name;
        if (!parse_hex(model, name.place.fingerprint)) {
            return;
        }
        each_folder(e, names::join(root, model), out, [&](const std::string & backend) {
            name.place.backend = backend;
            if (!is_backend(backend)) {
                return;
            }
            each_folder(e, names::join(names::join(root, model), backend), out, [&](const std::string & user) {
                if (!parse_hex(user, name.place.name_space)) {
                    return;
                }
                for (const dir_entry & entry : entries_of(e, names::join(root, folder_of(name.place)), out)) {
                    if (entry.type == file_type::file && parse_name(entry.name, name)) {
                        out.files.push_back({ name, disk_size(entry.size), entry.modified_ms });
                        out.bytes += disk_size(entry.size);
                    }
                }
            });
        });
    });
    const bool is_all_hidden = !out.unreadable.empty() && out.unreadable.front() == root;
    return is_all_hidden ? status::io_error(out.problem) : status::ok();
}

static status misplaced(const std::string & path) {
    return status::corrupt(damage::misplaced, path + ": has another name, user or model than its content");
}

static bool belongs_to(const file_header & header, const shared_place & place) {
    return header.fingerprint == place.fingerprint && header.name_space == place.name_space &&
           backend_folder(header.backend) == place.backend;
}

// The head of a file that is as large as the folder says, decoded with all checks.
template <typename Head, typename Decode>
static status read_checked_head(env & e, const std::string & path, uint64_t space, uint16_t kind, const Decode & decode, Head & out) {
    std::vector<uint8_t> bytes;
    uint64_t             size = 0;
    status               s    = read_head(e, path, kind, size, bytes);
    s = s.is_ok() ? check_space(space, size).in(path) : s;
    return s.is_ok() ? decode(bytes.data(), bytes.size(), size, out).in(path) : s;
}

status shared_folder::read_segment(const shared_file & file, segment_head & out) {
    const std::string path = path_of(file.name);
    if (status s = read_checked_head(e, path, file.bytes, format::kind_segment, decode_segment, out); !s.is_ok()) {
        return s;
    }
    return belongs_to(out.header, file.name.place) && out.runs.back().k == file.name.k && out.runs.front().p0 == file.name.at
        ? status::ok() : misplaced(path);
}

status shared_folder::read_anchor(const shared_file & file, anchor_head & out) {
    const std::string path = path_of(file.name);
    if (status s = read_checked_head(e, path, file.bytes, format::kind_anchor, decode_anchor, out); !s.is_ok()) {
        return s;
    }
    return belongs_to(out.header, file.name.place) && out.k == file.name.k && out.n_tokens == file.name.at ? status::ok() : misplaced(path);
}

status shared_folder::read(const shared_name & name, uint64_t file_size, const std::vector<shared_read> & parts,
                           const std::atomic<bool> & abandoned) {
    const std::string path = path_of(name);
    status            s    = read_once(path, file_size, parts, abandoned);
    if (s.is_miss() && !abandoned) {
        s = read_once(path, file_size, parts, abandoned);
    }
    return s.is_corrupt() ? explain(name, parts, s) : s;
}

// Whether the file is damaged, or is another one than these parts are of: what one server has evicted another writes with its own bytes.
status shared_folder::explain(const shared_name & name, const std::vector<shared_read> & parts, const status & damaged) {
    const shared_file file = { name, std::numeric_limits<uint64_t>::max(), 0 };
    segment_head      of_segment;
    anchor_head       of_anchor;
    if (const status s = name.is_anchor ? read_anchor(file, of_anchor) : read_segment(file, of_segment); !s.is_ok()) {
        return s;
    }
    const bool is_promised = std::all_of(parts.begin(), parts.end(), [&](const shared_read & part) {
        return name.is_anchor ? of_anchor.payload_offset == part.offset && of_anchor.checksum == part.checksum
            : std::any_of(of_segment.runs.begin(), of_segment.runs.end(), [&](const run_entry & r) {
                  return r.payload_offset == part.offset && r.checksum == part.checksum;
              });
    });
    return is_promised ? damaged : status::miss(path_of(name) + ": another server's file has taken its name");
}

status shared_folder::read_once(const std::string & path, uint64_t file_size, const std::vector<shared_read> & parts,
                                const std::atomic<bool> & abandoned) {
    std::unique_ptr<readable_file> file;
    if (status s = e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    if (file->size() != file_size) {
        return status::corrupt(damage::truncated, path + ": has another size than when it was found");
    }
    for (const shared_read & part : parts) {
        checksum_stream sum;
        for (uint64_t done = 0; done < part.into->size(); done += call_bytes) {
            if (abandoned) {
                return given_up();
            }
            const uint64_t n    = std::min(call_bytes, part.into->size() - done);
            const span     next = { part.into->data() + done, static_cast<size_t>(n) };
            if (status s = file->read(part.offset + done, &next, 1); !s.is_ok()) {
                return s;
            }
            sum.update(static_cast<const uint8_t *>(next.data), next.size);
        }
        if (sum.finish() != part.checksum) {
            return mismatch(path);
        }
    }
    return status::ok();
}

// A file that is about to be written says with its name how large it will be, so that others count it before it is.
status shared_folder::make_claim(uint64_t size, claim & out) {
    out.path = names::join(names::join(root, incoming), random_hex() + "-" + hex(size));
    out.size = size;
    return e.create_file(out.path, out.file);
}

void shared_folder::give_up(claim & own) {
    own.file.reset();
    (void) e.remove_file(own.path).is_ok(); // Else whoever looks does, some time.
}

status shared_folder::make_folders(const shared_place & place) {
    std::string path = root;
    for (const std::string & part : { hex(place.fingerprint), place.backend, hex(place.name_space) }) {
        path = names::join(path, part);
        if (status s = e.make_dir(path); !s.is_ok()) {
            return s;
        }
    }
    return status::ok();
}

status shared_folder::write_all(writable_file & file, const shared_copy & copy, const std::function<bool()> & is_wanted) {
    std::vector<const_span> parts = { { copy.head.data(), copy.head.size() } };
    for (const blob & part : copy.payload) {
        parts.push_back({ part->data(), part->size() });
    }
    uint64_t n_unsynced = 0;
    for (const const_span & part : parts) {
        for (uint64_t done = 0; done < part.size; done += call_bytes) {
            if (!is_wanted()) {
                return given_up();
            }
            const const_span next = { static_cast<const uint8_t *>(part.data) + done,
                                      static_cast<size_t>(std::min(call_bytes, part.size - done)) };
            status s = file.append(&next, 1);
            n_unsynced += next.size;
            if (s.is_ok() && n_unsynced >= sync_bytes) {
                s          = file.sync();
                n_unsynced = 0;
            }
            if (!s.is_ok()) {
                return s;
            }
        }
    }
    return file.sync();
}

// A file with a damaged head is replaced. One of another format belongs to another program, and stays.
bool shared_folder::has(const shared_name & name) {
    const shared_file file = { name, std::numeric_limits<uint64_t>::max(), 0 }; // Whether it has holes is its readers' matter.
    segment_head      of_segment;
    anchor_head       of_anchor;
    const status      s = name.is_anchor ? read_anchor(file, of_anchor) : read_segment(file, of_segment);
    return s.is_ok() || s.is_incompatible();
}

status shared_folder::claim_one(const shared_copy & copy, claim & out, bool & was_there) {
    was_there = has(copy.name);
    return was_there ? status::ok() : make_claim(copy.bytes(), out);
}

// The folder is counted after the claims are made: others may have written any amount since the last look, and count these.
void shared_folder::keep_what_fits(uint64_t limit, std::vector<claim> & claims, std::vector<shared_written> & out) {
    shared_listing now;
    const status   listed = list(now);
    for (size_t i = claims.size(); i-- > 0 && (!listed.is_ok() || now.bytes > limit);) {
        if (claims[i].file != nullptr) {
            give_up(claims[i]);
            now.bytes -= std::min(now.bytes, disk_size(claims[i].size));
            out[i].result = !listed.is_ok() ? listed
                : status::over_budget(root + ": the shared folder has its " + std::to_string(limit) + " bytes");
        }
    }
}

void shared_folder::renew(const std::vector<claim> & claims) {
    for (const claim & own : claims) {
        if (own.file != nullptr) {
            (void) e.touch(own.path).is_ok(); // One that others take is written again.
        }
    }
}

status shared_folder::write_claimed(const shared_copy & copy, claim & own, const std::function<bool()> & is_wanted,
                                    shared_written & out) {
    status s = make_folders(copy.name.place);
    s = s.is_ok() ? write_all(*own.file, copy, is_wanted) : s;
    s = s.is_ok() ? own.file->modified_ms(out.modified_ms) : s;
    s = s.is_ok() ? own.file->close() : s;
    own.file.reset();
    if (s.is_ok() && has(copy.name)) { // Another server was faster, and others read its file by now.
        out.was_there = true;
        give_up(own);
        return s;
    }
    s = s.is_ok() && !is_wanted() ? given_up() : s; // Something was removed while it was written: it may be about this.
    return s.is_ok() ? e.rename(own.path, path_of(copy.name)) : s;
}

std::vector<shared_written> shared_folder::write(const std::vector<shared_copy> & copies, uint64_t limit,
                                                 const std::function<bool()> & is_wanted, std::chrono::milliseconds renew_every) {
    using clock = std::chrono::steady_clock;
    std::vector<shared_written> out(copies.size());
    std::vector<claim>          claims(copies.size());
    bool                        is_any = false;
    for (size_t i = 0; i < copies.size(); i++) {
        out[i].result = claim_one(copies[i], claims[i], out[i].was_there);
        is_any        = is_any || claims[i].file != nullptr;
    }
    if (is_any) {
        keep_what_fits(limit, claims, out);
    }
    bool goes_on = true; // What follows a file that could not be written is of no use without it, or meets the same.
    auto renewed = clock::now();
    const auto still_wanted = [&] {
        if (clock::now() - renewed >= renew_every) {
            renew(claims);
            renewed = clock::now();
        }
        return is_wanted();
    };
    for (size_t i = 0; i < copies.size(); i++) {
        if (claims[i].file == nullptr) {
            continue;
        }
        goes_on       = goes_on && still_wanted();
        out[i].result = goes_on ? write_claimed(copies[i], claims[i], still_wanted, out[i]) : given_up();
        goes_on       = out[i].result.is_ok();
        if (!goes_on) {
            give_up(claims[i]);
        }
    }
    return out;
}

status shared_folder::touch(const shared_name & name) {
    return e.touch(path_of(name));
}

status shared_folder::remove(const shared_name & name) {
    const status s = e.remove_file(path_of(name));
    return s.is_miss() ? status::ok() : s;
}

status shared_folder::remove_unfinished(const std::string & name) {
    const status s = e.remove_file(names::join(names::join(root, incoming), name));
    return s.is_miss() ? status::ok() : s;
}

status shared_folder::read_text(const std::string & name, std::string & out) {
    std::unique_ptr<readable_file> file;
    if (status s = e.open_file(names::join(root, name), file); !s.is_ok()) {
        return s;
    }
    out.resize(static_cast<size_t>(std::min(file->size(), max_text)));
    const span whole = { out.data(), out.size() };
    return out.empty() ? status::ok() : file->read(0, &whole, 1);
}

status shared_folder::write_text(const std::string & name, const std::string & text) {
    claim own;
    if (status s = make_claim(text.size(), own); !s.is_ok()) {
        return s;
    }
    const const_span whole = { text.data(), text.size() };
    status           s     = own.file->append(&whole, 1);
    s = s.is_ok() ? own.file->close() : s;
    own.file.reset();
    s = s.is_ok() ? e.rename(own.path, names::join(root, name)) : s;
    if (!s.is_ok()) {
        give_up(own);
    }
    return s;
}

} // namespace kvtier
