// The one place that names files.
//
//   <root>/CACHEDIR.TAG
//   <root>/<fingerprint>/lock
//   <root>/<fingerprint>/pages/<id>.seg             segments
//   <root>/<fingerprint>/anchors/<key>.anc          anchors
//   <root>/<fingerprint>/<conv_hash>/ckpt-<N>.bin   checkpoints, index.bin beside them
//   <root>/<fingerprint>/quarantine/                damaged files, set aside
//   <root>/<fingerprint>/u/<user>/                  pages, anchors and conversations of one user
//
// Every variable part is a number or a hash in hex: no client's string ever becomes part of a path. Files being written
// are called tmp-<number> until they are complete.
#pragma once

#include "kvtier/keys.h"

#include <cstdint>
#include <string>

namespace kvtier {

// The name space of a user: the hash of the user's id, which names a folder. The empty id is the anonymous user's, whose name
// space is all zeros and has no folder of its own.
key user_key(const std::string & user);

// The rule of ids: letters, digits, _ and -, so many at most. The empty one is the anonymous user's.
constexpr size_t max_user_id = 512;
bool is_user_id(const std::string & text);

std::string hex(const key & k);
std::string hex(uint64_t value); // 16 digits
bool        parse_hex(const std::string & text, key & out);
bool        parse_hex(const std::string & text, uint64_t & out);

namespace names {

constexpr char tag_file[]    = "CACHEDIR.TAG";
constexpr char lock_file[]   = "lock";
constexpr char pages[]       = "pages";
constexpr char anchors[]     = "anchors";
constexpr char quarantine[]  = "quarantine";
constexpr char users[]       = "u";
constexpr char index_file[]  = "index.bin";
constexpr char temp_prefix[] = "tmp-";
constexpr char removed_prefix[] = "removed-"; // of a model's folder, while its files are being removed

// By convention (bford.info/cachedir) backup programs skip a folder that holds this.
constexpr char tag_text[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                            "# Model state kept by llama-run. It can be deleted while no server runs.\n";

// Numbers below these have names that are read back; counting up starts below their half, so it never gets there.
constexpr uint64_t max_segment    = uint64_t(1) << 63;
constexpr uint32_t max_checkpoint = 1000000000;

std::string join(const std::string & folder, const std::string & name);
std::string parent(const std::string & path);
bool        is_in(const std::string & path, const std::string & folder); // or is the folder itself
std::string segment(uint64_t id);
std::string anchor(const key & k);
std::string checkpoint(uint32_t number);
std::string temp(uint64_t number);
std::string removed(const key & fingerprint, int64_t now_ms);
std::string aside(const std::string & name, int64_t now_ms, uint64_t number); // of a damaged file, in quarantine

bool parse_segment(const std::string & name, uint64_t & id);
bool parse_anchor(const std::string & name, key & k);
bool parse_checkpoint(const std::string & name, uint32_t & number);
bool is_temp(const std::string & name);
bool is_removed(const std::string & name);

} // namespace names

// Where the files of one model are.
class file_layout {
public:
    file_layout(const std::string & root_dir, const key & fingerprint);

    const std::string & root() const { return root_; }
    const std::string & model() const { return model_; }

    std::string tag() const;
    std::string lock() const;
    std::string users() const;
    std::string quarantine() const;

    // name_space: whose they are; the anonymous user's are in the model's own folder.
    std::string name_space(const key & name_space) const;
    std::string pages(const key & name_space) const;
    std::string anchors(const key & name_space) const;
    std::string conversation(const key & name_space, uint64_t hash) const;

private:
    const std::string root_;
    const std::string model_;
};

} // namespace kvtier
