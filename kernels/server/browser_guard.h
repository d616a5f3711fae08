// Which web pages may talk to the server while it keeps what people said.
//
// A browser sends requests to this machine for any page that its user has open. Those of another site bear its Origin; those of
// a site that has made its own name resolve to this machine bear that name as their Host. Both are refused. Other programs
// (curl, agents, the OpenAI and Anthropic clients) send no Origin and the host they were told, and notice nothing.
//
// Without --cache-ssd the server is upstream's and everything passes.
#pragma once

#include <string>
#include <vector>

struct common_params;

namespace llama_run {

class browser_guard {
public:
    explicit browser_guard(const common_params & params);

    // Empty: may pass. Else the answer's body, for status 403. fetch_site: the Sec-Fetch-Site header, which browsers set.
    std::string refusal(const std::string & method, const std::string & host, const std::string & origin,
                        const std::string & fetch_site) const;

    // The same for the types of the HTTP library, which only upstream's server includes.
    template <typename Request, typename Response>
    bool refuses(const Request & req, Response & res) const {
        const std::string why = refusal(req.method, req.get_header_value("Host"), req.get_header_value("Origin"),
                                        req.get_header_value("Sec-Fetch-Site"));
        if (why.empty()) {
            return false;
        }
        res.status = 403;
        res.set_content(why, "application/json; charset=utf-8");
        return true;
    }

private:
    bool knows_host(const std::string & authority) const;
    bool knows_origin(const std::string & origin, const std::string & host) const;

    bool                     on = false;
    bool                     any_origin = false;
    std::vector<std::string> origins; // beside local ones
    std::vector<std::string> hosts;   // names, lower case
};

} // namespace llama_run
