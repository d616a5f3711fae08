// A conversation goes from one store to another: whole, in pieces, after interruptions, and from somebody who lies.
#include "kvtier/handover.h"

#include "kvtier/coding.h"
#include "kvtier/store_testing.h"

using namespace kvtier;
using namespace kvtier::test;

namespace {

constexpr uint64_t conversation_hash_of_test = 0xabcdef;
constexpr uint64_t max_part = uint64_t(1) << 20;

const std::atomic<bool> is_unwanted{ false };

status save_named(const model & m, store & s, const std::vector<token> & tokens, std::vector<uint32_t> anchors = {}) {
    save_request request = m.request(s, tokens, 10, true, std::move(anchors));
    request.conversation.hash     = conversation_hash_of_test;
    request.conversation.n_naming = 20;
    request.conversation.title    = "Which way to the sea?";
    return s.save(request);
}

// Two stores of one model, and a conversation in the first.
struct two_stores {
    model                  m;
    fault_env              disk_a, disk_b;
    std::unique_ptr<store> a, b;
    std::vector<token>     tokens;

    explicit two_stores(size_t folded_size = 0, const std::string & user = "", size_t bytes_per_token = 8, size_t n_tokens = 100)
        : tokens(random_tokens(7, n_tokens)) {
        m.folded_size     = folded_size;
        m.user            = user;
        m.bytes_per_token = bytes_per_token;
        a = open(disk_a, m.options());
        b = open(disk_b, m.options());
        std::vector<uint32_t> anchors;
        if (folded_size > 0) {
            anchors.push_back(40);
        }
        CHECK(save_named(m, *a, random_tokens(7, 60), anchors).is_ok());
        CHECK(save_named(m, *a, tokens).is_ok());
    }

    std::string stream() {
        std::unique_ptr<handover_source> source;
        CHECK(handover_source::open(*a, m.user, conversation_hash_of_test, source).is_ok());
        std::string out, more;
        while (out.size() < source->size() && source->read(out.size(), 333, more).is_ok()) {
            out += more;
        }
        CHECK(out.size() == source->size());
        return out;
    }

    status begin(const std::string & bytes, std::unique_ptr<handover_intake> & out) {
        return handover_intake::begin(*b, m.user, conversation_hash_of_test, bytes, max_part, out);
    }

    // Hands the whole stream over in pieces, as far as it is taken.
    status hand_over(const std::string & bytes, size_t piece = 100) {
        std::unique_ptr<handover_intake> intake;
        if (status s = begin(bytes.substr(0, handover_head_size(bytes)), intake); !s.is_ok()) {
            return s;
        }
        while (!intake->is_complete()) {
            const std::string part = bytes.substr(intake->wanted(), piece);
            CHECK(!part.empty());
            if (status s = intake->take(part.data(), part.size(), is_unwanted); !s.is_ok()) {
                return s;
            }
        }
        return status::ok();
    }
};

uint64_t n_files(const fault_env & disk) {
    return disk.files().size();
}

// The head's checksum, and no other, made right again: what a liar would do.
std::string sealed_again(std::string bytes) {
    auto * data = reinterpret_cast<uint8_t *>(&bytes[0]);
    store_le(data + format::header_head_checksum, head_checksum(data, handover_head_size(bytes)));
    return bytes;
}

} // namespace

TEST(a_conversation_that_is_handed_over_is_restored_to_its_last_token) {
    for (const char * user : { "", "alice" }) {
        two_stores s(0, user);
        CHECK(s.hand_over(s.stream()).is_ok());
        CHECK(s.m.restore(*s.b, s.tokens) == s.tokens.size());
        const std::vector<conversation_info> listed = s.b->list();
        CHECK(listed.size() == 1 && listed[0].hash == conversation_hash_of_test && listed[0].title == "Which way to the sea?");
        CHECK(listed[0].n_tokens == s.tokens.size() && listed[0].backend == "cpu");
        CHECK(counts_what_is_there(*s.b, s.disk_b));
    }
}

TEST(folded_state_goes_along) {
    two_stores s(24);
    CHECK(s.hand_over(s.stream(), 17).is_ok());
    CHECK(s.m.restore(*s.b, s.tokens) == s.tokens.size());
    CHECK(s.m.restore(*s.b, random_tokens(7, 60)) == 60);
}

TEST(it_is_there_after_the_store_is_opened_again) {
    two_stores s(24);
    CHECK(s.hand_over(s.stream()).is_ok());
    s.b.reset();
    s.b = open(s.disk_b, s.m.options());
    CHECK(s.b->damaged().empty());
    CHECK(s.m.restore(*s.b, s.tokens) == s.tokens.size());
}

TEST(the_same_conversation_gives_the_same_stream) {
    two_stores        s(24);
    const std::string before = s.stream();
    s.a.reset();
    s.a = open(s.disk_a, s.m.options());
    CHECK(s.stream() == before);
}

TEST(nothing_is_asked_for_or_written_that_is_there) {
    two_stores s(24);
    const std::string bytes = s.stream();
    CHECK(s.hand_over(bytes).is_ok());
    const uint64_t before = n_files(s.disk_b);
    std::unique_ptr<handover_intake> intake;
    CHECK(s.begin(bytes, intake).is_ok());
    const size_t checkpoint_at = handover_head_size(bytes);
    CHECK(intake->wanted() == checkpoint_at);
    size_t taken = 0;
    while (!intake->is_complete()) {
        CHECK(intake->take(bytes.data() + intake->wanted(), 1, is_unwanted).is_ok());
        taken++;
    }
    CHECK(taken < 1000);
    CHECK(n_files(s.disk_b) == before);
    CHECK(s.b->list()[0].turns == 1);
}

// 600 tokens at 40 kB each are several parts.
TEST(an_interrupted_handover_goes_on_after_the_parts_that_came) {
    two_stores s(0, "", 40000);
    s.tokens = random_tokens(7, 600);
    CHECK(save_named(s.m, *s.a, s.tokens).is_ok());
    const std::string bytes = s.stream();
    {
        std::unique_ptr<handover_intake> intake;
        CHECK(handover_intake::begin(*s.b, "", conversation_hash_of_test, bytes, uint64_t(64) << 20, intake).is_ok());
        const std::string half = bytes.substr(intake->wanted(), bytes.size() / 2);
        CHECK(intake->take(half.data(), half.size(), is_unwanted).is_ok());
        CHECK(!intake->is_complete());
    }
    s.b.reset(); // The server restarts.
    s.b = open(s.disk_b, s.m.options());
    CHECK(s.b->list().empty());
    std::unique_ptr<handover_intake> intake;
    CHECK(handover_intake::begin(*s.b, "", conversation_hash_of_test, bytes, uint64_t(64) << 20, intake).is_ok());
    CHECK(intake->take(bytes.data() + intake->wanted(), 4096, is_unwanted).is_ok()); // the checkpoint, and a part that is there
    CHECK(intake->wanted() > bytes.size() / 4);
    const std::string rest = bytes.substr(intake->wanted());
    CHECK(intake->take(rest.data(), rest.size(), is_unwanted).is_ok());
    CHECK(intake->is_complete());
    CHECK(s.m.restore(*s.b, s.tokens) == s.tokens.size());
}

TEST(what_other_conversations_have_behind_a_shared_page_stays) {
    two_stores s;
    std::vector<token> secret = s.tokens;
    secret.resize(64);
    append(secret, 99, 50);
    save_request request = s.m.request(*s.a, secret);
    request.conversation.hash = 5;
    CHECK(s.a->save(request).is_ok());
    const std::string bytes = s.stream();
    const std::string word(reinterpret_cast<const char *>(&secret[80]), 4 * sizeof(token));
    CHECK(!contains(bytes, word));
}

TEST(a_flipped_byte_anywhere_is_refused_or_costs_nothing) {
    two_stores        s(24);
    const std::string bytes = s.stream();
    for (size_t at = 0; at < bytes.size(); at += one_in) {
        fault_env   disk;
        std::string damaged = bytes;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
        s.b = open(disk, s.m.options());
        if (s.hand_over(damaged, bytes.size()).is_ok()) {
            CHECK(s.m.restore(*s.b, s.tokens) == s.tokens.size());
        }
        s.m.restore(*s.b, s.tokens); // Wrong bytes fail the test.
        s.b.reset();
    }
}

TEST(a_stream_that_is_cut_is_not_complete_and_leaves_a_sound_store) {
    two_stores        s(24);
    const std::string bytes = s.stream();
    const size_t      head  = handover_head_size(bytes);
    for (size_t n = head; n < bytes.size(); n += 5) {
        fault_env disk;
        s.b = open(disk, s.m.options());
        std::unique_ptr<handover_intake> intake;
        CHECK(s.begin(bytes, intake).is_ok());
        CHECK(intake->take(bytes.data() + head, n - head, is_unwanted).is_ok());
        CHECK(!intake->is_complete());
        intake.reset();
        CHECK(s.b->list().empty());
        s.m.restore(*s.b, s.tokens);
        s.b.reset();
    }
    std::unique_ptr<handover_intake> intake;
    s.b = open(s.disk_b, s.m.options());
    CHECK(s.begin(bytes.substr(0, head - 1), intake).is_corrupt());
    CHECK(s.begin("", intake).is_corrupt());
}

TEST(another_model_is_refused_with_the_difference) {
    two_stores    s;
    store_options other = s.m.options();
    other.fingerprint[3] ^= 1;
    other.facts = "model=llama 1B\nrope_freq_base=0x1.388p+13\ntype_k=q8_0\ntype_v=f16\n";
    store_options ours  = s.m.options();
    ours.facts  = "model=llama 1B\nrope_freq_base=0x1.86ap+16\ntype_k=f16\ntype_v=f16\n";
    s.a.reset();
    s.a = open(s.disk_a, ours);
    s.b.reset();
    s.b = open(s.disk_b, other);
    const status refused = s.hand_over(s.stream());
    CHECK(refused.is_incompatible());
    CHECK(contains(refused.message(), "rope_freq_base is 100000 there and 10000 here, type_k is f16 there and q8_0 here"));
    CHECK(!contains(refused.message(), "type_v"));
}

TEST(another_users_state_is_refused) {
    two_stores        s(0, "alice");
    const std::string bytes = s.stream();
    std::unique_ptr<handover_intake> intake;
    CHECK(handover_intake::begin(*s.b, "bob", conversation_hash_of_test, bytes, max_part, intake).is_incompatible());
    CHECK(handover_intake::begin(*s.b, "", conversation_hash_of_test, bytes, max_part, intake).is_incompatible());
    CHECK(handover_intake::begin(*s.b, "alice", 1, bytes, max_part, intake).is_incompatible());
}

TEST(a_part_that_is_too_large_for_memory_is_refused_before_it_comes) {
    two_stores        s;
    const std::string bytes = s.stream();
    std::unique_ptr<handover_intake> intake;
    CHECK(handover_intake::begin(*s.b, "", conversation_hash_of_test, bytes, 64, intake).is_exhausted());
}

TEST(tokens_that_are_not_those_of_the_pages_are_refused) {
    two_stores  s;
    std::string bytes = s.stream();
    const size_t n_parts = load_le<uint32_t>(reinterpret_cast<const uint8_t *>(bytes.data()) + format::handover_n_parts);
    bytes[format::handover_parts + format::part_size * n_parts] ^= 1; // the first token
    CHECK(s.hand_over(sealed_again(bytes)).is_corrupt());
    CHECK(s.b->list().empty());
}

TEST(a_budget_without_room_refuses_and_keeps_what_is_stored) {
    two_stores    s;
    store_options small = s.m.options();
    small.max_bytes = 6 * 4096;
    s.b.reset();
    s.b = open(s.disk_b, small);
    const status refused = s.hand_over(s.stream());
    CHECK(refused.is_no_space());
    CHECK(s.b->stats().disk_bytes <= small.max_bytes);
}

TEST(a_conversation_that_is_not_there_is_a_miss) {
    two_stores                       s;
    std::unique_ptr<handover_source> source;
    CHECK(handover_source::open(*s.a, "", 12345, source).is_miss());
    CHECK(handover_source::open(*s.a, "alice", conversation_hash_of_test, source).is_miss());
}

TEST(what_nobody_wants_any_more_is_not_stored) {
    two_stores                       t;
    const std::string                bytes = t.stream();
    std::unique_ptr<handover_intake> intake;
    CHECK(t.begin(bytes.substr(0, handover_head_size(bytes)), intake).is_ok());
    const std::atomic<bool> is_removed{ true };
    const uint64_t          from = intake->wanted();
    CHECK(intake->take(bytes.data() + from, bytes.size() - from, is_removed).is_miss());
    CHECK(t.m.restore(*t.b, t.tokens) == 0);
}

TEST(what_has_come_so_far_goes_with_the_conversation) {
    for (const size_t n_tokens : { 100, 1300 }) { // The longer one has a name by its first tokens, too, which is not its own.
      for (const size_t folded_size : { size_t(0), size_t(100) }) {
        two_stores                       t(folded_size, "", (size_t(1) << 17) * 100 / n_tokens, n_tokens); // several parts
        const std::string                bytes = t.stream();
        std::unique_ptr<handover_intake> intake;
        const std::string head = bytes.substr(0, handover_head_size(bytes));
        CHECK(handover_intake::begin(*t.b, "", conversation_hash_of_test, head, 16 * max_part, intake).is_ok());
        const uint64_t from = intake->wanted();
        const uint64_t n    = (bytes.size() - from) * 9 / 10;
        CHECK(intake->take(bytes.data() + from, n, is_unwanted).is_ok());
        CHECK(!files_with(t.disk_b, ".seg").empty());
        CHECK(!intake->is_complete());
        uint64_t freed = 0;
        CHECK(t.b->remove_conversation(key{}, conversation_hash_of_test, freed).is_ok());
        CHECK(files_with(t.disk_b, ".seg").empty());
        CHECK(files_with(t.disk_b, ".anc").empty());
      }
    }
}

int main() {
    return run_tests();
}
