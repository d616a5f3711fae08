#include "server/handover/handover_desk.h"

#include "kvtier/file_names.h"

#include "log.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace llama_run {

using kvtier::handover_intake;
using kvtier::status;

// So many come at a time, and each holds one part in memory: together they take no more than the RAM tier may.
static constexpr size_t   max_arrivals = 4;
static constexpr uint64_t min_part     = uint64_t(64) << 20;

// A sender that was not heard of for so long begins again.
static constexpr auto patience = std::chrono::minutes(10);

static server_http_res_ptr refuse_bytes(int code, const char * type, const std::string & message) {
    return answer(code, { { "error", { { "code", code }, { "type", type }, { "message", message } } } });
}

server_http_res_ptr wrong_offset(uint64_t offset, const std::string & message) {
    return answer(409, {
        { "error",  { { "code", 409 }, { "type", "wrong_offset" }, { "message", message } } },
        { "offset", offset },
    });
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

status handover_desk::open(const std::string & user, uint64_t hash, std::unique_ptr<kvtier::handover_source> & out) {
    admin.flush();
    return kvtier::handover_source::open(stores.target->store(), user, hash, out);
}

// False: too many come at once, or a request works on this one.
bool handover_desk::make_place(const kvtier::conversation_id & id) {
    const auto         now = clock::now();
    kvtier::mutex_lock guard(mu);
    for (auto it = arrivals.begin(); it != arrivals.end();) {
        const bool gone = it->second.intake != nullptr && (it->first == id || now - it->second.last_heard > patience);
        it = gone ? arrivals.erase(it) : std::next(it);
    }
    return arrivals.size() < max_arrivals && arrivals.emplace(id, arrival{ nullptr, now }).second;
}

std::unique_ptr<handover_intake> handover_desk::fetch(const kvtier::conversation_id & id) {
    kvtier::mutex_lock guard(mu);
    const auto         found = arrivals.find(id);
    return found == arrivals.end() ? nullptr : std::move(found->second.intake);
}

// null: it is over.
void handover_desk::put_back(const kvtier::conversation_id & id, std::unique_ptr<handover_intake> intake) {
    kvtier::mutex_lock guard(mu);
    if (intake == nullptr) {
        arrivals.erase(id);
    } else {
        arrivals[id] = { std::move(intake), clock::now() };
    }
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
    if (!make_place(id)) {
        return refuse_bytes(503, "unavailable_error", "other conversations are being handed over: try again in a while");
    }
    work            on       = { *this, id, nullptr };
    kvtier::store & store    = stores.target->store();
    const uint64_t  max_part = std::max(store.options().ram_bytes / max_arrivals, min_part);
    if (const status s = handover_intake::begin(store, user, hash, bytes.substr(0, n_head), max_part, on.intake); !s.is_ok()) {
        return refuse_for(s);
    }
    return feed(on, bytes.data() + n_head, bytes.size() - n_head);
}

server_http_res_ptr handover_desk::go_on(const kvtier::conversation_id & id, uint64_t offset, uint64_t stream,
                                         const std::string & bytes) {
    std::unique_ptr<handover_intake> found = fetch(id);
    if (found == nullptr) {
        return wrong_offset(0, "this conversation is not on its way to here: begin with its head");
    }
    work on = { *this, id, std::move(found) };
    if (on.intake->id() != stream) {
        return wrong_offset(0, "another state of this conversation is on its way to here");
    }
    if (on.intake->wanted() != offset) {
        return wrong_offset(on.intake->wanted(), "it goes on at another offset");
    }
    return feed(on, bytes.data(), bytes.size());
}

server_http_res_ptr handover_desk::feed(work & on, const char * bytes, size_t size) const {
    auto intake = std::exchange(on.intake, nullptr);
    if (const status s = intake->take(bytes, size); !s.is_ok()) {
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
