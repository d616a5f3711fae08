#include "kvtier/file_names.h"

#include "kvtier/blake2b.h"

#include <algorithm>
#include <cstring>

namespace kvtier {

static constexpr char domain_user[] = "llama-run user 1";
static constexpr char digits[]      = "0123456789abcdef";

bool is_user_id(const std::string & text) {
    return text.size() <= max_user_id && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
}

key user_key(const std::string & user) {
    key out{};
    if (!user.empty()) {
        blake2b hash(out.size());
        hash.update(domain_user, std::strlen(domain_user));
        hash.update(user.data(), user.size());
        hash.finish(out.data());
    }
    return out;
}

static int digit_value(char c) {
    const char * found = c == '\0' ? nullptr : std::strchr(digits, c);
    return found == nullptr ? -1 : static_cast<int>(found - digits);
}

std::string hex(const key & k) {
    std::string out;
    for (uint8_t byte : k) {
        out += digits[byte >> 4];
        out += digits[byte & 15];
    }
    return out;
}

std::string hex(uint64_t value) {
    std::string out;
    for (int shift = 60; shift >= 0; shift -= 4) {
        out += digits[value >> shift & 15];
    }
    return out;
}

bool parse_hex(const std::string & text, key & out) {
    if (text.size() != 2 * out.size()) {
        return false;
    }
    for (size_t i = 0; i < out.size(); i++) {
        const int high = digit_value(text[2 * i]);
        const int low  = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i] = static_cast<uint8_t>(high << 4 | low);
    }
    return true;
}

bool parse_hex(const std::string & text, uint64_t & out) {
    if (text.size() != 16) {
        return false;
    }
    out = 0;
    for (char c : text) {
        const int value = digit_value(c);
        if (value < 0) {
            return false;
        }
        out = out << 4 | static_cast<uint64_t>(value);
    }
    return true;
}

namespace names {

static constexpr char segment_suffix[]    = ".seg";
static constexpr char anchor_suffix[]     = ".anc";
static constexpr char checkpoint_prefix[] = "ckpt-";
static constexpr char checkpoint_suffix[] = ".bin";

// The part between prefix and suffix, or nothing.
static std::string middle(const std::string & name, const std::string & prefix, const std::string & suffix) {
    if (name.size() < prefix.size() + suffix.size() || name.compare(0, prefix.size(), prefix) != 0 ||
        name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
        return "";
    }
    return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
}

std::string join(const std::string & folder, const std::string & name) {
    return folder + "/" + name;
}

std::string parent(const std::string & path) {
    const size_t slash = path.find_last_of('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool is_in(const std::string & path, const std::string & folder) {
    return path.compare(0, folder.size(), folder) == 0 && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string segment(uint64_t id)         { return hex(id) + segment_suffix; }
std::string anchor(const key & k)        { return hex(k) + anchor_suffix; }
std::string checkpoint(uint32_t number)  { return checkpoint_prefix + std::to_string(number) + checkpoint_suffix; }
std::string temp(uint64_t number)        { return temp_prefix + std::to_string(number); }
std::string removed(const key & fingerprint, int64_t now_ms) {
    return removed_prefix + hex(fingerprint) + "-" + std::to_string(now_ms);
}

// A name may be as long as the system allows; what is added in front must still fit.
std::string aside(const std::string & name, int64_t now_ms, uint64_t number) {
    return std::to_string(now_ms) + "-" + std::to_string(number) + "-" + name.substr(0, 100);
}

bool parse_segment(const std::string & name, uint64_t & id) {
    return parse_hex(middle(name, "", segment_suffix), id) && id < max_segment;
}

bool parse_anchor(const std::string & name, key & k) {
    return parse_hex(middle(name, "", anchor_suffix), k);
}

bool parse_checkpoint(const std::string & name, uint32_t & number) {
    const std::string text = middle(name, checkpoint_prefix, checkpoint_suffix);
    if (text.empty() || text.size() > 9 || (text[0] == '0' && text.size() > 1)) {
        return false;
    }
    number = 0;
    for (char c : text) {
        if (c < '0' || c > '9') {
            return false;
        }
        number = number * 10 + static_cast<uint32_t>(c - '0');
    }
    return true;
}

bool is_temp(const std::string & name) {
    return name.compare(0, std::strlen(temp_prefix), temp_prefix) == 0;
}

bool is_removed(const std::string & name) {
    return name.compare(0, std::strlen(removed_prefix), removed_prefix) == 0;
}

} // namespace names

file_layout::file_layout(const std::string & root_dir, const key & fingerprint)
    : root_(root_dir), model_(names::join(root_dir, hex(fingerprint))) {}

std::string file_layout::tag() const        { return names::join(root_, names::tag_file); }
std::string file_layout::lock() const       { return names::join(model_, names::lock_file); }
std::string file_layout::users() const      { return names::join(model_, names::users); }
std::string file_layout::quarantine() const { return names::join(model_, names::quarantine); }

std::string file_layout::name_space(const key & name_space) const {
    return name_space == key{} ? model_ : names::join(users(), hex(name_space));
}

std::string file_layout::pages(const key & of) const   { return names::join(name_space(of), names::pages); }
std::string file_layout::anchors(const key & of) const { return names::join(name_space(of), names::anchors); }

std::string file_layout::conversation(const key & of, uint64_t hash) const {
    return names::join(name_space(of), hex(hash));
}

} // namespace kvtier
