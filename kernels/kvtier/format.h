// Formats 1 and 2 of the files in the store, as byte offsets. There are constants only; docs/formats.md explains them and a test
// compares its tables with this file, so the two cannot drift apart.
//
// All integers are little-endian. Every file starts with the same header; what follows it depends on the kind. The
// head of a file is header + tables + tokens; payload, where there is one, follows the head without a gap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier {
namespace format {

constexpr uint8_t  magic[8] = { 'L', 'R', 'K', 'V', 'T', 'I', 'E', 'R' };
constexpr uint16_t version  = 1;

// Checkpoints and indexes that say what format 1 has no place for; a program that only knows that one leaves them alone. All
// other files are of format 1.
constexpr uint16_t version_extended = 2;

// kind
constexpr uint16_t kind_segment    = 1; // pages: the attention rows of consecutive tokens
constexpr uint16_t kind_anchor     = 2; // the folded state at one length
constexpr uint16_t kind_checkpoint = 3; // a conversation at the end of a turn
constexpr uint16_t kind_index      = 4; // when a conversation was last used
constexpr uint16_t kind_handover   = 5; // a conversation on its way to another store

// flags
constexpr uint32_t flag_static_prefix = 1; // system prompt and tools: shared by design, evicted last
constexpr uint32_t flag_folded        = 2; // checkpoint: its model restores at anchors only

// header, in every file
constexpr size_t header_magic         = 0;   // 8 bytes
constexpr size_t header_version       = 8;   // u16
constexpr size_t header_kind          = 10;  // u16
constexpr size_t header_head_size     = 12;  // u32
constexpr size_t header_file_size     = 16;  // u64
constexpr size_t header_head_checksum = 24;  // u64
constexpr size_t header_fingerprint   = 32;  // 16 bytes
constexpr size_t header_name_space    = 48;  // 16 bytes
constexpr size_t header_root          = 64;  // 16 bytes
constexpr size_t header_created_ms    = 80;  // i64
constexpr size_t header_page_size     = 88;  // u32
constexpr size_t header_flags         = 92;  // u32
constexpr size_t header_written_by    = 96;  // 16 bytes
constexpr size_t header_backend       = 112; // 32 bytes
constexpr size_t header_size          = 144;

// segment
constexpr size_t segment_id       = 144; // u64
constexpr size_t segment_n_runs   = 152; // u32
constexpr size_t segment_n_tokens = 156; // u32
constexpr size_t segment_runs     = 160; // n_runs entries, then n_tokens tokens, then the payload

// entry of a segment's table
constexpr size_t run_key            = 0;  // 16 bytes
constexpr size_t run_parent         = 16; // 16 bytes
constexpr size_t run_p0             = 32; // u32
constexpr size_t run_p1             = 36; // u32
constexpr size_t run_payload_offset = 40; // u64
constexpr size_t run_payload_size   = 48; // u64
constexpr size_t run_checksum       = 56; // u64
constexpr size_t run_size           = 64;

// anchor
constexpr size_t anchor_key             = 144; // 16 bytes
constexpr size_t anchor_base            = 160; // 16 bytes
constexpr size_t anchor_n_tokens        = 176; // u32
constexpr size_t anchor_n_tail          = 180; // u32
constexpr size_t anchor_tokens_checksum = 184; // u64
constexpr size_t anchor_payload_size    = 192; // u64
constexpr size_t anchor_checksum        = 200; // u64
constexpr size_t anchor_tail            = 208; // n_tail tokens, then the payload

// checkpoint
constexpr size_t checkpoint_conversation = 144; // u64
constexpr size_t checkpoint_turn         = 152; // u64
constexpr size_t checkpoint_number       = 160; // u32
constexpr size_t checkpoint_n_tokens     = 164; // u32
constexpr size_t checkpoint_n_static     = 168; // u32
constexpr size_t checkpoint_n_runs       = 172; // u32
constexpr size_t checkpoint_n_anchors    = 176; // u32
constexpr size_t checkpoint_n_roles      = 180; // u32
constexpr size_t checkpoint_tables       = 184; // n_runs points, n_anchors points, n_roles role marks

// what format 2 adds behind a checkpoint's tables
constexpr size_t extended_n_naming   = 0; // u32
constexpr size_t extended_title_size = 4; // u32
constexpr size_t extended_title      = 8; // title_size bytes of UTF-8

// point: a place in a chain of tokens
constexpr size_t point_key = 0;  // 16 bytes
constexpr size_t point_n   = 16; // u32
constexpr size_t point_size = 20;

// role mark
constexpr size_t role_position = 0; // u32
constexpr size_t role_kind     = 4; // u32
constexpr size_t role_size     = 8;

// index
constexpr size_t index_conversation = 144; // u64
constexpr size_t index_last_turn    = 152; // u64
constexpr size_t index_last_used_ms = 160; // i64
constexpr size_t index_hits         = 168; // u64
constexpr size_t index_n_entries    = 176; // u32
constexpr size_t index_reserved     = 180; // u32
constexpr size_t index_entries      = 184; // n_entries entries

// entry of an index
constexpr size_t use_number       = 0;  // u32
constexpr size_t use_reserved     = 4;  // u32
constexpr size_t use_last_turn    = 8;  // u64
constexpr size_t use_last_used_ms = 16; // i64
constexpr size_t use_hits         = 24; // u64
constexpr size_t use_size         = 32;

// what format 2 adds behind an index's entries
constexpr size_t kept_ttl_ms    = 0;  // i64
constexpr size_t kept_expire_ms = 8;  // i64
constexpr size_t kept_size      = 16;

// handover
constexpr size_t handover_conversation = 144; // u64
constexpr size_t handover_n_tokens     = 152; // u32
constexpr size_t handover_n_parts      = 156; // u32
constexpr size_t handover_facts_size   = 160; // u32
constexpr size_t handover_reserved     = 164; // u32
constexpr size_t handover_parts        = 168; // n_parts entries, n_tokens tokens, facts_size bytes of text, then the parts

// entry of a handover's table
constexpr size_t part_kind  = 0; // u32
constexpr size_t part_n     = 4; // u32
constexpr size_t part_bytes = 8; // u64
constexpr size_t part_size  = 16;

// A file that claims more than these limits is damaged: no model has a context of 16 million tokens, and nothing is allocated
// for a claim that the size of the file does not back.
constexpr uint32_t max_tokens    = uint32_t(1) << 24;
constexpr uint32_t max_page_size = uint32_t(1) << 16;
constexpr uint32_t max_runs      = uint32_t(1) << 20;
constexpr uint32_t max_anchors   = uint32_t(1) << 12;
constexpr uint32_t max_roles     = uint32_t(1) << 16;
constexpr uint32_t max_title     = uint32_t(1) << 10;
constexpr uint32_t max_parts     = uint32_t(1) << 16;
constexpr uint32_t max_facts     = uint32_t(1) << 16;
constexpr uint32_t max_head_size = uint32_t(1) << 28;
constexpr uint64_t max_file_size = uint64_t(1) << 40;

} // namespace format
} // namespace kvtier
