#include "server/handover/handover_desk.h"

#include "kvtier/file_names.h"

#include "log.h"

#include <algorithm>
#include <utility>

namespace llama_run {

using kvtier::handover_intake;
using kvtier::status;

// Each that comes holds one part in memory: together they take no more than the RAM tier may.
static constexpr uint64_t min_part = uint64_t(64) << 20;

static constexpr int max_sent     = 8;
static constexpr int busy_seconds = 5; // Then it is worth asking again.

static server_http_res_ptr refuse_bytes(int code, const char * type, const std::string & message) {
    return answer(code, { { "error", { { "code", code }, { "type", type }, { "message", message } } } });
}

server_http_res_ptr wrong_offset(uint64_t offset, const std::string & message) {
    return answer(409, {
        { "error",  { { "code", 409 }, { "type", "wrong_offset" }, { "message", message } } },
        { "offset", offset },
    });
}

server_http_res_ptr busy() {
    auto told = refuse_bytes(503, "unavailable_error", "other conversations are being handed over: try again in a while");
    told->headers["Retry-After"] = std::to_string(busy_seconds);
    return told;
}

static server_http_res_ptr refuse_for(const status & s) {
    switch (s.kind()) {
        case kvtier::status_kind::corrupt:      return refuse_bytes(400, "invalid_request_error", s.message());
        case kvtier::status_kind::incompatible: return refuse_bytes(409, "incompatible_state", s.message());
        case kvtier::status_kind::exhausted:    return refuse_bytes(413, "too_large", s.message());
        case kvtier::status_kind::no_space:
        case kvtier::status_kind::over_budget:  return refuse_bytes(507, "no_space", s.message());
        case kvtier::status_kind::miss:         return wrong_offset(0, "what came before is not stored any more: " + s.message());
        default:                                return refuse_bytes(500, "server_error", s.message());
    }
}

static server_http_res_ptr was_removed() {
    return refuse_bytes(410, "removed", "the conversation, or its user, was removed here while it came");
}

status handover_desk::open(const std::string & user, uint64_t hash, std::unique_ptr<kvtier::handover_source> & out) {
    admin.flush();
    return kvtier::handover_source::open(stores.target->store(), user, hash, out);
}

std::shared_ptr<void> handover_desk::begin_sending() {
    std::shared_ptr<void> place(this, [](void * desk) { static_cast<handover_desk *>(desk)->n_sent--; });
    return ++n_sent <= max_sent ? place : nullptr;
}

void handover_desk::remove(const removal & what) {
    coming.remove([&](const kvtier::conversation_id & id) { return what.concerns(id); });
}

server_http_res_ptr handover_desk::take(const std::string & user, uint64_t hash, uint64_t offset, uint64_t id,
                                        const std::string & bytes) {
    return offset == 0 ? begin(user, hash, bytes) : go_on({ kvtier::user_key(user), hash }, offset, id, bytes);
}

server_http_res_ptr handover_desk::begin(const std::string & user, uint64_t hash, const std::string & bytes) {
    const size_t n_head = kvtier::handover_head_size(bytes);
    if (n_head == 0 || n_head > bytes.size()) {
        return refuse_bytes(400, "invalid_request_error", "these bytes do not begin with the head of a conversation's state");
    }
    const kvtier::conversation_id id = { kvtier::user_key(user), hash };
    const auto on = coming.begin(id);
    if (on == nullptr) {
        return busy();
    }
    kvtier::store & store    = stores.target->store();
    const uint64_t  max_part = std::max(store.options().ram_bytes / arrivals::max_at_once, min_part);
    if (const status s = handover_intake::begin(store, user, hash, bytes.substr(0, n_head), max_part, on->intake); !s.is_ok()) {
        return refuse_for(s);
    }
    return feed(*on, bytes.data() + n_head, bytes.size() - n_head);
}

server_http_res_ptr handover_desk::go_on(const kvtier::conversation_id & id, uint64_t offset, uint64_t stream,
                                         const std::string & bytes) {
    const auto on = coming.go_on(id);
    if (on == nullptr) {
        return coming.is_worked_on(id) ? busy() : wrong_offset(0, "this conversation is not on its way to here: begin with its head");
    }
    if (on->intake == nullptr) {
        return was_removed();
    }
    if (on->intake->id() != stream) {
        return wrong_offset(0, "another state of this conversation is on its way to here");
    }
    if (on->intake->wanted() != offset) {
        return wrong_offset(on->intake->wanted(), "it goes on at another offset");
    }
    return feed(*on, bytes.data(), bytes.size());
}

server_http_res_ptr handover_desk::feed(arrivals::work & on, const char * bytes, size_t size) const {
    auto intake = std::exchange(on.intake, nullptr);
    if (const status s = intake->take(bytes, size, *on.is_removed); !s.is_ok()) {
        if (*on.is_removed) {
            on.intake = std::move(intake);
            return was_removed();
        }
        LOG_WRN("cache: a conversation that was handed over is not stored: %s\n", s.message().c_str());
        return refuse_for(s);
    }
    auto told = answer(200, {
        { "hash",     kvtier::hex(on.id.second) },
        { "id",       kvtier::hex(intake->id()) },
        { "offset",   intake->wanted() },
        { "size",     intake->size() },
        { "tokens",   intake->n_tokens() },
        { "backend",  intake->backend() },
        { "complete", intake->is_complete() },
    });
    if (!intake->is_complete()) {
        on.intake = std::move(intake);
    }
    return told;
}

} // namespace llama_run
