// The result of everything in the store that can go wrong.
//
// There are nine kinds, because callers do nine different things: use it, recompute, recompute and set a file aside, leave
// a newer format alone, go without because the disk is full, because the cache has used up its budget or because the process
// lacks memory or file handles, report the disk, report the other process. Only ok restores. The message names the file and
// the cause, for the log: nobody looks for words in it. The damage says under which reason a broken file is counted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace kvtier {

enum class status_kind : uint8_t { ok, miss, corrupt, incompatible, no_space, over_budget, exhausted, io_error, busy };

const char * kind_name(status_kind kind);

// Says why a file was refused. Each reason is counted apart: a disk that flips bits and a folder somebody copied call for
// different help.
enum class damage : uint8_t {
    none,
    truncated,    // shorter or longer than it says
    bad_magic,    // not one of our files
    bad_version,  // another format version
    bad_checksum, // bytes changed
    bad_length,   // a count or offset that contradicts itself
    misplaced,    // sound, but its name, folder or model is another's
    wrong_type,   // a folder, a link or a device where a file belongs
    incomplete,   // a checkpoint that names state which is not there
    n_kinds,
};

const char * damage_name(damage reason);

class [[nodiscard]] status {
public:
    static status ok()                            { return {}; }
    static status miss(std::string text)          { return { status_kind::miss, damage::none, std::move(text) }; }
    static status no_space(std::string text)      { return { status_kind::no_space, damage::none, std::move(text) }; }
    static status over_budget(std::string text)   { return { status_kind::over_budget, damage::none, std::move(text) }; }
    static status exhausted(std::string text)     { return { status_kind::exhausted, damage::none, std::move(text) }; }
    static status io_error(std::string text)      { return { status_kind::io_error, damage::none, std::move(text) }; }
    static status incompatible(std::string text)  { return { status_kind::incompatible, damage::bad_version, std::move(text) }; }
    static status corrupt(damage why, std::string text) { return { status_kind::corrupt, why, std::move(text) }; }

    // holder is the process that has it, 0 where that is not known.
    static status busy(std::string text, long holder) {
        status out{ status_kind::busy, damage::none, std::move(text) };
        out.holder_ = holder;
        return out;
    }

    bool is_ok()           const { return kind_ == status_kind::ok; }
    bool is_miss()         const { return kind_ == status_kind::miss; }
    bool is_corrupt()      const { return kind_ == status_kind::corrupt; }
    bool is_incompatible() const { return kind_ == status_kind::incompatible; }
    bool is_over_budget()  const { return kind_ == status_kind::over_budget; }
    bool is_exhausted()    const { return kind_ == status_kind::exhausted; }
    bool is_io_error()     const { return kind_ == status_kind::io_error; }
    bool is_busy()         const { return kind_ == status_kind::busy; }

    // There is no room for a file, be it on the disk or in the budget.
    bool is_no_space()     const { return kind_ == status_kind::no_space || is_over_budget(); }

    // The file itself is at fault: it should be set aside rather than tried again.
    bool is_damaged()      const { return is_corrupt() || is_incompatible(); }

    status_kind         kind()    const { return kind_; }
    damage              reason()  const { return reason_; }
    long                holder()  const { return holder_; }
    const std::string & message() const { return message_; }

    // Gives the same status with the file's name in front of its message.
    status in(const std::string & path) const {
        status out = *this;
        if (!is_ok()) {
            out.message_ = path + ": " + message_;
        }
        return out;
    }

private:
    status() = default;
    status(status_kind kind, damage reason, std::string text) : kind_(kind), reason_(reason), message_(std::move(text)) {}

    status_kind kind_   = status_kind::ok;
    damage      reason_ = damage::none;
    long        holder_ = 0;
    std::string message_;
};

inline const char * kind_name(status_kind kind) {
    switch (kind) {
        case status_kind::ok:           return "ok";
        case status_kind::miss:         return "miss";
        case status_kind::corrupt:      return "corrupt";
        case status_kind::incompatible: return "incompatible";
        case status_kind::no_space:     return "no_space";
        case status_kind::over_budget:  return "over_budget";
        case status_kind::exhausted:    return "exhausted";
        case status_kind::io_error:     return "io_error";
        case status_kind::busy:         return "busy";
    }
    return "unknown";
}

inline const char * damage_name(damage reason) {
    switch (reason) {
        case damage::none:         return "none";
        case damage::truncated:    return "truncated";
        case damage::bad_magic:    return "bad_magic";
        case damage::bad_version:  return "bad_version";
        case damage::bad_checksum: return "bad_checksum";
        case damage::bad_length:   return "bad_length";
        case damage::misplaced:    return "misplaced";
        case damage::wrong_type:   return "wrong_type";
        case damage::incomplete:   return "incomplete";
        case damage::n_kinds:      break;
    }
    return "unknown";
}

} // namespace kvtier
