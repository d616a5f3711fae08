// Integers in byte arrays are little-endian, because files are read on machines other than the one that wrote them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvtier {

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr bool host_is_little_endian = true;
#else
constexpr bool host_is_little_endian = false;
#endif

template <typename T>
inline T load_le(const uint8_t * bytes) {
    T value = 0;
    if (host_is_little_endian) {
        std::memcpy(&value, bytes, sizeof(T));
    } else {
        for (size_t i = sizeof(T); i-- > 0;) {
            value = static_cast<T>(value << 8 | bytes[i]);
        }
    }
    return value;
}

template <typename T>
inline void store_le(uint8_t * bytes, T value) {
    if (host_is_little_endian) {
        std::memcpy(bytes, &value, sizeof(T));
    } else {
        for (size_t i = 0; i < sizeof(T); i++) {
            bytes[i] = static_cast<uint8_t>(value >> (8 * i));
        }
    }
}

} // namespace kvtier
