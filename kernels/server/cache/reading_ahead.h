// The thread that reads what was used last into RAM after the start, until the first request comes.
//
// Thread safety: begin and stop belong to the thread that opens and closes the stores, the rest to anybody.
#pragma once

#include "kvtier/store.h"

#include <atomic>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace llama_run {

class reading_ahead {
public:
    ~reading_ahead() { stop(); }

    // The stores must live until it has stopped.
    void begin(std::vector<kvtier::store *> stores) {
        under_way = true;
        try {
            thread = std::thread([this, stores = std::move(stores)] {
                for (kvtier::store * store : stores) {
                    store->read_ahead(over);
                }
                under_way = false;
            });
        } catch (const std::system_error &) {
            under_way = false; // No thread is to be had: everything is read when it is asked for.
        }
    }

    // The disk belongs to requests from now on.
    void end() { over = true; }

    bool is_under_way() const { return under_way; }

    void stop() {
        end();
        if (thread.joinable()) {
            thread.join();
        }
    }

private:
    std::atomic<bool> over{ false };
    std::atomic<bool> under_way{ false };
    std::thread       thread;
};

} // namespace llama_run
