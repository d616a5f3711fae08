// Checksums are compared with values of the reference implementation: of every formula for short inputs, and of both
// sides of each boundary.
#include "kvtier/checksum.h"
#include "kvtier/testing.h"

#include <algorithm>
#include <vector>

using namespace kvtier;

namespace {

struct known_answer {
    size_t   size;
    uint64_t checksum;
};

const known_answer known_answers[] = {
    {      0, 0x2d06800538d394c2 },
    {      1, 0xc44bdff4074eecdb },
    {      2, 0xd6645fc3051a9457 },
    {      3, 0x37892f624f40b19c },
    {      4, 0x5206b2e6b553fe7e },
    {      8, 0x98c961a085a126a8 },
    {      9, 0xd6ff946995b5f732 },
    {     16, 0x7811a63c955db878 },
    {     17, 0xb1adc62e0cf2e837 },
    {     32, 0x78faf7a1dc3009b8 },
    {     33, 0x47800873b760103e },
    {     64, 0x32a24085cf441787 },
    {     65, 0x3bfba3fdb567f4cf },
    {     96, 0x0e0bcc1632cf339a },
    {     97, 0xe91ed4dff1ee5094 },
    {    128, 0x75f641de129b9250 },
    {    129, 0xc0874810ab91d5e5 },
    {    144, 0xff723f18173f910b },
    {    240, 0x100873fe1bbc153a },
    {    241, 0x1ef3a6cb47fbad2d },
    {    256, 0xd2ec23f78aff05ce },
    {    257, 0x6b12920c9551f26b },
    {    320, 0x70e25c24415c0f60 },
    {    512, 0x8350c4eab953c954 },
    {    513, 0xa18ce4635fd9fae4 },
    {   1024, 0x6811158f016ad5dc },
    {   1025, 0x17e75d922ee4c353 },
    {   1088, 0xd6a03e7dc0fa9f1b },
    {   2048, 0x67be7858b252e442 },
    {   2049, 0xd8dc27162768a102 },
    { 100000, 0xd0d057cdc2a27a4c },
};

std::vector<uint8_t> some_bytes(size_t size) {
    std::vector<uint8_t> out(size);
    for (size_t i = 0; i < size; i++) {
        out[i] = static_cast<uint8_t>(i * i + i / 7);
    }
    return out;
}

} // namespace

TEST(a_checksum_is_the_one_of_xxh3) {
    for (const known_answer & known : known_answers) {
        CHECK(checksum64(some_bytes(known.size).data(), known.size) == known.checksum);
    }
}

TEST(a_checksum_does_not_depend_on_how_the_input_is_cut) {
    for (const known_answer & known : known_answers) {
        const std::vector<uint8_t> data = some_bytes(known.size);
        for (size_t piece : { 1, 5, 63, 64, 65, 192, 256, 257, 1000, 4096 }) {
            checksum_stream stream;
            for (size_t at = 0; at < data.size(); at += piece) {
                stream.update(data.data() + at, std::min(piece, data.size() - at));
            }
            CHECK(stream.finish() == known.checksum);
        }
    }
}

TEST(a_flipped_bit_changes_the_checksum) {
    for (size_t size : { 1, 7, 16, 100, 200, 300, 5000 }) {
        std::vector<uint8_t> data = some_bytes(size);
        const uint64_t       sound = checksum64(data.data(), size);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
            CHECK(checksum64(data.data(), size) != sound);
            data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
        }
    }
}

int main() {
    return run_tests();
}
