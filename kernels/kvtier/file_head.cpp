#include "kvtier/file_head.h"

#include "kvtier/codec.h"

#include <algorithm>
#include <memory>

namespace kvtier {

// One read fetches the head of most files whole.
static constexpr size_t first_read = 64 << 10;

status read_head(env & e, const std::string & path, uint16_t kind, uint64_t & file_size, std::vector<uint8_t> & out) {
    std::unique_ptr<readable_file> file;
    if (status s = e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    file_size = file->size();
    out.resize(static_cast<size_t>(std::min<uint64_t>(file_size, first_read)));
    span whole = { out.data(), out.size() };
    if (status s = file->read(0, &whole, 1); !s.is_ok()) {
        return s;
    }
    size_t head_size = 0;
    if (status s = decode_head_size(out.data(), out.size(), kind, file_size, head_size); !s.is_ok()) {
        return s.in(path);
    }
    const size_t have = out.size();
    out.resize(head_size); // at most the size of the file
    if (head_size > have) {
        span rest = { out.data() + have, head_size - have };
        return file->read(have, &rest, 1);
    }
    return status::ok();
}

status check_space(uint64_t on_disk, uint64_t file_size) {
    constexpr uint64_t max_harmless = uint64_t(256) << 20;
    constexpr uint64_t max_ratio    = 64;
    return file_size <= max_harmless || file_size / max_ratio <= on_disk
        ? status::ok() : status::corrupt(damage::bad_length, "has " + std::to_string(file_size) + " bytes, most of them holes");
}

} // namespace kvtier
