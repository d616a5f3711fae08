// The env is tried on the real file system: on links, folders, pipes, locks and permissions.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"
#include "kvtier/unsynced_env.h"

#include <chrono>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvtier;
using namespace kvtier::test;

TEST(links_pipes_and_folders_are_not_taken_for_files) {
    temp_folder folder;
    env &       e = posix_env();
    CHECK(::symlink("/etc/passwd", (folder.path + "/link").c_str()) == 0);
    CHECK(::symlink("/etc", (folder.path + "/dir").c_str()) == 0);
    CHECK(::mkfifo((folder.path + "/pipe").c_str(), 0600) == 0);
    CHECK(e.make_dir(folder.path + "/folder").is_ok());
    for (const char * name : { "/link", "/pipe", "/folder" }) {
        std::unique_ptr<readable_file> file;
        const status s = e.open_file(folder.path + name, file);
        CHECK(s.is_corrupt() && s.reason() == damage::wrong_type);
    }
    CHECK(e.make_dir(folder.path + "/dir").is_corrupt());
    std::unique_ptr<writable_file> out;
    CHECK(!e.create_file(folder.path + "/link", out).is_ok());
    std::unique_ptr<readable_file> file;
    CHECK(e.open_file(folder.path + "/nothing", file).is_miss());
    uint64_t bytes = 0;
    CHECK(measure_tree(e, folder.path, bytes).is_ok());
    CHECK(bytes == 2 * disk_block); // /etc is not ours
}

TEST(files_are_readable_by_their_owner_alone) {
    temp_folder folder;
    model       m;
    m.user = "u";
    m.folded_size = 10;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    ::umask(0);
    auto s = open(posix_env(), o);
    CHECK(m.save(*s, random_tokens(1, 40)).is_ok());
    std::vector<std::string> folders = { o.root_dir };
    size_t                   n_files = 0;
    while (!folders.empty()) {
        const std::string      at = folders.back();
        std::vector<dir_entry> entries;
        folders.pop_back();
        CHECK(posix_env().list_dir(at, entries).is_ok());
        struct stat info;
        CHECK(::stat(at.c_str(), &info) == 0 && (info.st_mode & 0777) == 0700);
        for (const dir_entry & entry : entries) {
            if (entry.type == file_type::folder) {
                folders.push_back(at + "/" + entry.name);
            } else {
                n_files++;
                CHECK(::stat((at + "/" + entry.name).c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);
            }
        }
    }
    CHECK(n_files == 6);
}

TEST(a_second_process_is_told_who_holds_the_store) {
    temp_folder   folder;
    model         m;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    auto s = open(posix_env(), o);
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        std::unique_ptr<store> other;
        const status got = store::open(posix_env(), o, other);
        const std::string holder = "process " + std::to_string(static_cast<long>(::getppid()));
        ::_exit(got.is_busy() && got.message().find(holder) != std::string::npos ? 0 : 1);
    }
    int how = 0;
    CHECK(::waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    s = nullptr;
    s = open(posix_env(), o); // given back
    CHECK(s != nullptr);
}

TEST(a_folder_without_permission_is_an_error_that_says_so) {
    if (::geteuid() == 0) {
        return; // root may do everything
    }
    temp_folder   folder;
    model         m;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    CHECK(::chmod(folder.path.c_str(), 0500) == 0);
    std::unique_ptr<store> s;
    const status got = store::open(posix_env(), o, s);
    CHECK(got.is_io_error() && got.message().find("ermission") != std::string::npos);
    CHECK(::chmod(folder.path.c_str(), 0700) == 0);
}

TEST(large_reads_and_writes_come_back_whole) {
    temp_folder folder;
    env &       e = posix_env();
    std::vector<std::vector<uint8_t>> parts;
    std::vector<const_span>           out;
    for (size_t i = 0; i < 1300; i++) { // more than one writev takes, with empty ones in between
        parts.emplace_back(i % 5 == 0 ? 0 : i * 7, static_cast<uint8_t>(i));
    }
    for (const auto & p : parts) {
        out.push_back({ p.data(), p.size() });
    }
    std::unique_ptr<writable_file> w;
    CHECK(e.create_file(folder.path + "/f", w).is_ok());
    CHECK(w->append(out.data(), out.size()).is_ok());
    CHECK(w->sync().is_ok() && w->close().is_ok());
    std::vector<std::vector<uint8_t>> back;
    std::vector<span>                 in;
    for (const auto & p : parts) {
        back.emplace_back(p.size());
    }
    for (auto & p : back) {
        in.push_back({ p.data(), p.size() });
    }
    std::unique_ptr<readable_file> r;
    CHECK(e.open_file(folder.path + "/f", r).is_ok());
    r->will_need(0, r->size());
    CHECK(r->read(0, in.data(), in.size()).is_ok());
    CHECK(back == parts);
    CHECK(r->read(1, in.data(), in.size()).is_corrupt());
}

// Leaves the file as after a restart of the machine, where the file system can forget.
static void drop_from_page_cache(const std::string & path) {
#if defined(POSIX_FADV_DONTNEED)
    const int fd = ::open(path.c_str(), O_RDONLY);
    CHECK(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    ::close(fd);
#endif
}

static void drop_all_from_page_cache(const std::string & folder) {
    std::vector<dir_entry> entries;
    CHECK(posix_env().list_dir(folder, entries).is_ok());
    for (const dir_entry & entry : entries) {
        const std::string path = folder + "/" + entry.name;
        entry.type == file_type::folder ? drop_all_from_page_cache(path) : drop_from_page_cache(path);
    }
}

TEST(blocks_have_the_bytes_of_the_file) {
    temp_folder          folder;
    env &                e    = posix_env();
    const std::string    path = folder.path + "/f";
    std::vector<uint8_t> bytes(3 * (1 << 20) + 123);
    random_source        r{ 1 };
    for (uint8_t & b : bytes) {
        b = static_cast<uint8_t>(r.next());
    }
    std::unique_ptr<writable_file> w;
    const const_span               all = { bytes.data(), bytes.size() };
    CHECK(e.create_file(path, w).is_ok() && w->append(&all, 1).is_ok() && w->sync().is_ok() && w->close().is_ok());
    for (bool dropped : { false, true }) {
        for (size_t step : { block_size, size_t(256) << 10, size_t(1) << 20, size_t(8) << 20 }) {
            if (dropped) {
                drop_from_page_cache(path);
            }
            std::unique_ptr<readable_file> file;
            CHECK(e.open_file(path, file).is_ok());
            bool cached = file->is_cached(0, bytes.size());
            for (int i = 0; i < 100 && !dropped && !cached; i++) { // Where memory is short it may have gone already.
                std::vector<uint8_t> again(bytes.size());
                const span           whole = { again.data(), again.size() };
                CHECK(file->read(0, &whole, 1).is_ok());
                cached = file->is_cached(0, bytes.size());
            }
            CHECK(dropped || cached);
            file->begin_blocks(0, bytes.size(), cached);
            buffer back(bytes.size()); // has room to the end of its last block
            for (size_t at = 0; at < bytes.size(); at += step) {
                const size_t end = (bytes.size() + block_size - 1) / block_size * block_size;
                CHECK(file->read_blocks(at, { back.data() + at, std::min(step, end - at) }).is_ok());
            }
            CHECK(std::memcmp(back.data(), bytes.data(), bytes.size()) == 0);
        }
    }
    for (bool dropped : { false, true }) {
        std::unique_ptr<readable_file> file;
        CHECK(e.open_file(path, file).is_ok());
        if (dropped) {
            drop_from_page_cache(path);
        }
        file->begin_blocks(0, file->size(), file->is_cached(0, file->size()));
        CHECK(::truncate(path.c_str(), 1 << 20) == 0);
        buffer back(bytes.size());
        CHECK(file->read_blocks(0, { back.data(), size_t(1) << 20 }).is_ok());
        CHECK(file->read_blocks(0, { back.data(), size_t(2) << 20 }).is_corrupt());
        CHECK(::truncate(path.c_str(), static_cast<off_t>(bytes.size())) == 0);
    }
}

// Runs have more than a block and less, an anchor has several parts; they begin at any place within a block, in and out of
// the page cache.
TEST(large_state_comes_back_from_a_disk_as_it_was) {
    for (size_t bytes_per_token : { size_t(100000), size_t(65536) }) {
        temp_folder folder;
        model       m;
        m.bytes_per_token = bytes_per_token;
        m.folded_size     = (size_t(17) << 20) + bytes_per_token % 4096;
        store_options o = m.options();
        o.root_dir = folder.path + "/cache";
        const std::vector<token> tokens = random_tokens(1, 3 * m.page_size + 5);
        CHECK(m.save(*open(posix_env(), o), tokens, 20).is_ok());
        for (bool dropped : { false, true }) {
            if (dropped) {
                drop_all_from_page_cache(o.root_dir);
            }
            CHECK(m.restore(*open(posix_env(), o), tokens) == tokens.size());
        }
        const std::string      anchors = o.root_dir + "/" + hex(o.fingerprint) + "/anchors";
        std::vector<dir_entry> files;
        CHECK(posix_env().list_dir(anchors, files).is_ok() && files.size() == 1);
        const int fd   = ::open((anchors + "/" + files[0].name).c_str(), O_RDWR);
        char      last = 0;
        CHECK(::pread(fd, &last, 1, static_cast<off_t>(files[0].size) - 1) == 1);
        last ^= 1;
        CHECK(::pwrite(fd, &last, 1, static_cast<off_t>(files[0].size) - 1) == 1 && ::fsync(fd) == 0);
        ::close(fd);
        drop_all_from_page_cache(o.root_dir);
        CHECK(m.restore(*open(posix_env(), o), tokens) == 0);
    }
}

TEST(a_file_is_not_taken_for_another_of_its_name) {
    temp_folder       folder;
    const std::string path = folder.path + "/lock";
    const int         fd   = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
    CHECK(is_file_at(path, fd));
    CHECK(posix_env().rename(path, path + "-moved").is_ok());
    CHECK(!is_file_at(path, fd));
    std::unique_ptr<file_lock> lock;
    CHECK(posix_env().lock_file(path, lock).is_ok());
    CHECK(!is_file_at(path, fd));
    ::close(fd);
}

TEST(one_file_that_stays_does_not_keep_the_rest_of_a_tree) {
    failing_env disk;
    disk.put_folder("/tree");
    disk.put_folder("/tree/1-closed");
    disk.put_folder("/tree/2-open");
    disk.put("/tree/1-stuck", "x");
    disk.put("/tree/2-open/large", std::string(9 * disk_block, 'x'));
    disk.put("/tree/3-small", "x");
    disk.no_remove = "1-stuck";
    disk.no_list   = "1-closed";
    uint64_t bytes = 0, freed = 0;
    CHECK(measure_tree(disk, "/tree", bytes).is_io_error());
    CHECK(bytes == disk.disk_bytes());
    CHECK(remove_tree(disk, "/tree", &freed).is_io_error());
    CHECK(disk.files() == std::vector<std::string>{ "/tree/1-stuck" });
    CHECK(freed == bytes - disk.disk_bytes());
    disk.no_remove = "";
    CHECK(remove_tree(disk, "/tree", &freed).is_ok());
    CHECK(freed == bytes);
    CHECK(remove_tree(disk, "/tree", &freed).is_miss());
}

// The file is sound in its head, and asks for more memory than there is.
TEST(a_hole_in_place_of_state_is_given_no_memory) {
    temp_folder  folder;
    unsynced_env disk;
    model        m;
    m.folded_size = 64;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(m.save(*open(disk, o), tokens).is_ok());

    const std::string anchors = names::join(names::join(o.root_dir, hex(o.fingerprint)), names::anchors);
    std::vector<dir_entry> entries;
    CHECK(disk.list_dir(anchors, entries).is_ok() && entries.size() == 1);
    const std::string              path = names::join(anchors, entries.front().name);
    std::unique_ptr<readable_file> sound;
    CHECK(disk.open_file(path, sound).is_ok());
    std::vector<uint8_t> bytes(sound->size());
    const span           whole = { bytes.data(), bytes.size() };
    CHECK(sound->read(0, &whole, 1).is_ok());
    anchor_head head;
    CHECK(decode_anchor(bytes.data(), bytes.size() - m.folded_size, bytes.size(), head).is_ok());
    head.payload_size = uint64_t(1) << 30;
    bytes = encode_anchor(head);
    CHECK(disk.remove_file(path).is_ok());
    std::unique_ptr<writable_file> made_up;
    CHECK(disk.create_file(path, made_up).is_ok());
    const const_span all = { bytes.data(), bytes.size() };
    CHECK(made_up->append(&all, 1).is_ok() && made_up->close().is_ok());
    CHECK(::truncate(path.c_str(), static_cast<off_t>(bytes.size() + head.payload_size)) == 0);

    auto s = open(disk, o);
    CHECK(s->stats().values.damaged[static_cast<size_t>(damage::bad_length)] == 1);
    CHECK(m.restore(*s, tokens) == 0);
    CHECK(m.save(*s, tokens).is_ok());
    CHECK(m.restore(*s, tokens) == 64);
}

TEST(only_names_that_were_given_are_taken) {
    uint64_t id     = 0;
    uint32_t number = 0;
    key      k;
    CHECK(names::parse_segment(names::segment(0x1234), id) && id == 0x1234);
    CHECK(names::parse_checkpoint(names::checkpoint(17), number) && number == 17);
    CHECK(names::parse_anchor(names::anchor(user_key("x")), k) && k == user_key("x"));
    for (const char * bad : { "", ".seg", "123.seg", "00000000000000FF.seg", "00000000000000ffx.seg", "0000000000000g00.seg" }) {
        CHECK(!names::parse_segment(bad, id));
    }
    for (const char * bad : { "ckpt-.bin", "ckpt-01.bin", "ckpt--1.bin", "ckpt-1.bin2", "ckpt-9999999999.bin", "ckpt-1a.bin" }) {
        CHECK(!names::parse_checkpoint(bad, number));
    }
    CHECK(user_key("") == key{});
}

int main() {
    return run_tests();
}
