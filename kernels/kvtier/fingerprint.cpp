#include "kvtier/fingerprint.h"

#include "kvtier/blake2b.h"
#include "kvtier/coding.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace kvtier {

static constexpr char domain_fingerprint[] = "llama-run fingerprint 1";

void fingerprint_builder::add(const std::string & name, const void * data, size_t size) {
    key     digest;
    blake2b hash(digest.size());
    hash.update(data, size);
    hash.finish(digest.data());
    fields.emplace_back(name, digest);
}

void fingerprint_builder::add(const std::string & name, const std::string & text) {
    add(name, text.data(), text.size());
}

void fingerprint_builder::add(const std::string & name, uint64_t value) {
    uint8_t bytes[8];
    store_le(bytes, value);
    add(name, bytes, sizeof(bytes));
}

void fingerprint_builder::add(const std::string & name, double value) {
    uint64_t bits;
    static_assert(sizeof(bits) == sizeof(value), "IEEE 754 double precision");
    std::memcpy(&bits, &value, sizeof(bits));
    add(name, bits);
}

key fingerprint_builder::finish(const std::string & prefix) const {
    std::vector<std::pair<std::string, key>> sorted;
    std::copy_if(fields.begin(), fields.end(), std::back_inserter(sorted), [&](const auto & field) {
        return field.first.compare(0, prefix.size(), prefix) == 0;
    });
    std::sort(sorted.begin(), sorted.end());
    blake2b hash(sizeof(key));
    hash.update(domain_fingerprint, std::strlen(domain_fingerprint));
    for (const auto & [name, digest] : sorted) {
        uint8_t size[4]; // before the name, so that no two lists of fields run together to the same bytes
        store_le(size, static_cast<uint32_t>(name.size()));
        hash.update(size, sizeof(size));
        hash.update(name.data(), name.size());
        hash.update(digest.data(), digest.size());
    }
    key out;
    hash.finish(out.data());
    return out;
}

} // namespace kvtier
