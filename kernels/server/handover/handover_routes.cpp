#include "server/handover/handover_routes.h"

#include "server/handover/handover_desk.h"
#include "server/routes.h"
#include "server/state_cache.h"

#include "kvtier/file_names.h"

#include "log.h"

#include <charconv>
#include <utility>

namespace llama_run {

static constexpr size_t chunk_bytes = size_t(1) << 20; // of a stream that goes out

// Which conversation, and where its stream goes on. Throws std::invalid_argument, which upstream answers with 400.
struct place_in_stream {
    uint64_t hash   = 0;
    uint64_t offset = 0;
    uint64_t id     = 0;
    bool     has_id = false;

    explicit place_in_stream(const server_http_req & req) {
        const std::string offset_text = req.get_param("offset", "0");
        const char *      end         = offset_text.data() + offset_text.size();
        const auto [rest, problem]    = std::from_chars(offset_text.data(), end, offset);
        if (problem != std::errc() || rest != end) {
            throw std::invalid_argument("offset is a number of bytes");
        }
        const std::string id_text = req.get_param("id");
        has_id = !id_text.empty();
        if (!kvtier::parse_hex(req.get_param("hash"), hash) || hash == 0 || (has_id && !kvtier::parse_hex(id_text, id))) {
            throw std::invalid_argument("the conversation's hash and the stream's id are 16 hex digits each");
        }
    }
};

static server_http_res_ptr send(const state_cache & cache, const std::string & user, const place_in_stream & from) {
    const auto desk = cache.handovers();
    if (!desk) {
        return refuse("the cache is off", ERROR_TYPE_NOT_SUPPORTED);
    }
    auto place = desk->begin_sending();
    if (place == nullptr) {
        return busy();
    }
    std::unique_ptr<kvtier::handover_source> opened;
    if (const kvtier::status s = desk->open(user, from.hash, opened); !s.is_ok()) {
        return refuse(s.message(), s.is_miss()         ? ERROR_TYPE_NOT_FOUND
                                 : s.is_incompatible() ? ERROR_TYPE_NOT_SUPPORTED : ERROR_TYPE_SERVER);
    }
    if (from.has_id && from.id != opened->id()) {
        return wrong_offset(0, "the conversation has changed since: begin again");
    }
    if (from.offset > opened->size()) {
        return refuse("the stream has " + std::to_string(opened->size()) + " bytes", ERROR_TYPE_INVALID_REQUEST);
    }
    // What it reads is kept by the desk's cache, and a server that sleeps closes that.
    struct sending {
        std::shared_ptr<void>                    awake;
        std::shared_ptr<handover_desk>           desk;
        std::shared_ptr<void>                    place;
        std::unique_ptr<kvtier::handover_source> source;
        uint64_t                                 at;
    };
    auto res  = std::make_unique<server_http_res>();
    auto what = std::make_shared<sending>(sending{ cache.wake(), desk, std::move(place), std::move(opened), from.offset });
    res->content_type = "application/octet-stream";
    res->headers      = { { "Cache-Control", "no-store" }, { "ETag", "\"" + kvtier::hex(what->source->id()) + "\"" },
                          { "X-Llama-State-Size", std::to_string(what->source->size()) } };
    res->next = [&cache, what](std::string & out) {
        if (what->at >= what->source->size() || cache.is_stopping()) {
            return false;
        }
        if (const kvtier::status s = what->source->read(what->at, chunk_bytes, out); !s.is_ok()) {
            LOG_WRN("cache: a conversation is not handed over: %s\n", s.message().c_str());
            return false; // The receiver knows how long it is.
        }
        what->at += out.size();
        return what->at < what->source->size();
    };
    return res;
}

void add_handover_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there,
                         const std::function<std::string(const server_http_req &)> & user_of) {
    http.get("/cache/conversations/:hash/state", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] { return send(cache, user_of(req), place_in_stream(req)); });
    }));
    http.post("/cache/conversations/:hash/state", here_or_there("POST", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] {
            const place_in_stream at(req);
            const auto            desk = cache.handovers();
            return desk ? desk->take(user_of(req), at.hash, at.offset, at.id, req.body)
                        : refuse("the cache is off", ERROR_TYPE_NOT_SUPPORTED);
        });
    }));
}

} // namespace llama_run
