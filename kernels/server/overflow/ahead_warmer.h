// Evaluates, while nobody waits, what will stay of a conversation at its next cut, so that the cut itself finds it in the cache.
//
// It goes in small steps, each a task of its own in the server's queue, and only while no request is under way: one that comes
// waits for the end of a step at most. What was evaluated until then is kept, and the rest goes on when all is quiet again.
//
// A server with something planned does not fall asleep: it would hold its queue, which the warmer's thread posts to, and wait for
// that thread.
//
// Thread safety: open, close and released belong to the inference thread; the rest may be called from any thread.
#pragma once

#include "server/conversation.h"

#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include "common.h"
#include "json.h"
#include "server-common.h"
#include "server-queue.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace llama_run {

class ahead_warmer {
public:
    // A chat request as it would be behind the next cut.
    struct job {
        std::string                user;
        conversation_request       conversation; // with a key
        common_json                body;
        const server_chat_params * chat = nullptr;
        std::shared_ptr<void>      awake; // plan sets it

        bool is_of(const std::string & user, uint64_t conversation_hash) const; // 0: of any of the user's conversations
        bool is_like(const job & other) const { return user == other.user && conversation.key == other.conversation.key; }
    };

    // The cache that keeps what is evaluated.
    struct keeper {
        // How many tokens of the task's prompt it has.
        std::function<size_t(const server_task & task, const std::string & user)> stored;

        // Looks a step's task up, as the hooks of a request would. last: the prefix is complete with it.
        std::function<void(server_task & task, const job & of, bool last)> arrive;
    };

    ~ahead_warmer() { close(); }

    // params, the context and the queue must stay until close.
    void open(const common_params & params, const llama_context * target, server_queue & queue, keeper cache);
    void close();

    bool is_on() const;
    void plan(job && next); // nothing, while it is off or paused; belongs to a request that keeps the server awake
    void pause(bool on);    // a battery is low: what is planned is given up

    // What was planned for a conversation that is about to be removed, or for all of a user's, is given up; what is under way ends
    // with its step. hash: 0 for all.
    void forget(const std::string & user, uint64_t hash);
    void forget(const kvtier::conversation_id & id);
    void forget_all();

    // A request is under way for as long as the result lives.
    std::shared_ptr<void> enter();

    void released(int id_task, uint64_t n_tokens); // a slot is done with that task and has evaluated so many tokens

    uint64_t evaluated() const { return n_evaluated; } // tokens

    // Chats of which something is still to be evaluated.
    size_t pending() const {
        kvtier::mutex_lock guard(shared->mu);
        return shared->jobs.size() + (shared->worked_on != nullptr);
    }

private:
    void forget_where(const std::function<bool(const job &)> & concerns);
    // What the threads share. Requests may outlive the warmer.
    struct state {
        kvtier::mutex     mu;
        kvtier::condition changed;
        std::deque<job>   jobs GUARDED_BY(mu);
        uint32_t          n_requests GUARDED_BY(mu) = 0;
        int               running GUARDED_BY(mu)    = -1; // the task that is waited for
        bool              stopping GUARDED_BY(mu)   = true; // or not begun
        bool              paused GUARDED_BY(mu)     = false;
        const job *       worked_on GUARDED_BY(mu)  = nullptr;
        bool              forgotten GUARDED_BY(mu)  = false; // the one that is worked on
    };

    enum class outcome : uint8_t { done, disturbed, stopped };

    void        run();
    outcome     work(const job & j);
    server_task make_task(const job & j, const llama_tokens & tokens, size_t n,
                          const common_chat_msg_delimiters & delimiters) const;
    outcome     evaluate(server_task && task);

    const std::shared_ptr<state> shared = std::make_shared<state>();
    const common_params *        params = nullptr;
    const llama_context *        target = nullptr;
    server_queue *               queue  = nullptr;
    keeper                       cache;
    std::atomic<uint64_t>        n_evaluated{ 0 };
    std::thread                  thread;
};

} // namespace llama_run
