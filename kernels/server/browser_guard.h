// Which web pages may talk to the server while it keeps what people said, or offers tools.
//
// A browser sends requests to this machine for any page that its user has open. Those of another site bear its Origin; those of
// a site that has made its own name resolve to this machine bear that name as their Host. Both are refused. Other programs
// (curl, agents, the OpenAI and Anthropic clients) send no Origin and the host they were told, and notice nothing.
//
// Without --cache-ssd and --mcp-servers-config the server is upstream's and everything passes. Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/thread_annotations.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

struct common_params;

namespace llama_run {

// What a request says of where it comes from; empty: the header is not there. The last three only browsers set.
struct request_origin {
    std::string method;
    std::string host;
    std::string origin;
    std::string fetch_site;
    std::string fetch_mode;
    std::string fetch_dest;
};

class browser_guard {
public:
    explicit browser_guard(const common_params & params);

    bool is_on() const { return on; }

    // Empty: may pass. Else the answer's body, for status 403; it is logged, too, since a browser shows it to nobody.
    std::string refusal(const request_origin & from) const;

    // The same for the types of the HTTP library, which only upstream's server includes. Who may ask may read the answer.
    template <typename Request, typename Response>
    bool refuses(const Request & req, Response & res) const {
        if (!on) {
            return false;
        }
        const std::string origin = req.get_header_value("Origin");
        const std::string why    = refusal({ req.method, req.get_header_value("Host"), origin, req.get_header_value("Sec-Fetch-Site"),
                                             req.get_header_value("Sec-Fetch-Mode"), req.get_header_value("Sec-Fetch-Dest") });
        if (!why.empty()) {
            res.status = 403;
            res.set_content(why, "application/json; charset=utf-8");
            return true;
        }
        if (!origin.empty()) {
            res.set_header("Access-Control-Allow-Origin", origin);
            res.set_header("Vary", "Origin");
        }
        return false;
    }

private:
    bool        knows_host(const std::string & authority) const;
    bool        knows_origin(const std::string & origin, const std::string & host) const;
    std::string refused(const std::string & message) const;

    // Bounded: what is refused comes from outside.
    struct refusals {
        kvtier::mutex         mu;
        std::set<std::string> said GUARDED_BY(mu);
    };

    bool                      on         = false;
    bool                      any_host   = false;
    bool                      any_origin = false;
    std::vector<std::string>  origins; // beside local ones
    std::vector<std::string>  hosts;   // names, lower case
    std::shared_ptr<refusals> log = std::make_shared<refusals>(); // one for all copies of this
};

// Of the headers that a router hands on to a model's own server, lower case: its guard has looked at these, and for the model's
// server every page is a foreign one.
bool is_checked_by_router(const std::string & header);

} // namespace llama_run
