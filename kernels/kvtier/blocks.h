// The block: what disks read and file systems allocate in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier {

// It is a multiple of what direct reads ask for on every disk and file system we know of, and what the common file systems
// allocate.
constexpr size_t   block_size = 4096;
constexpr uint64_t disk_block = block_size;

// A file of one byte takes a block. Counting bytes alone would understate many small files.
constexpr uint64_t disk_size(uint64_t file_size) {
    return (file_size + disk_block - 1) / disk_block * disk_block;
}

// A folder grows with the names in it. This is what two new ones may add at most (a file's temporary one and its own): ext4
// turns one block into three when it begins to index them, and later splits a leaf and at times the node above.
constexpr uint64_t folder_growth = 4 * disk_block;

} // namespace kvtier
