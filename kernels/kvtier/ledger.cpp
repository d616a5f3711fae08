#include "kvtier/ledger.h"

#include "kvtier/file_names.h"

#include <algorithm>

namespace kvtier {

ledger::ledger(std::shared_ptr<disk_budget> budget, std::string model) : budget_(std::move(budget)), model(std::move(model)) {}

ledger::~ledger() {
    budget_->release(bytes());
    if (begun) {
        budget_->disown(model);
    }
}

void ledger::begin() {
    budget_->own(model);
    begun = true;
}

bool ledger::reserve(uint64_t bytes, reservation & out) {
    out = reservation();
    if (!budget_->reserve(bytes)) {
        return false;
    }
    out.from  = budget_.get();
    out.bytes = bytes;
    return true;
}

uint64_t ledger::replace(const std::string & path, uint64_t bytes) {
    const uint64_t before = std::exchange(counted[path], bytes);
    total += bytes;
    total -= before;
    return before;
}

void ledger::count(const std::string & path, uint64_t bytes) {
    mutex_lock     guard(mu);
    const uint64_t before = replace(path, bytes);
    if (bytes > before) {
        budget_->add(bytes - before);
    } else {
        budget_->release(before - bytes);
    }
}

void ledger::count(const std::string & path, uint64_t bytes, reservation & room) {
    mutex_lock     guard(mu);
    const uint64_t before = replace(path, bytes);
    const uint64_t paid   = std::min(bytes, room.bytes);
    room.bytes -= paid;
    budget_->add(bytes - paid);
    budget_->release(before);
}

void ledger::move(const std::string & from, const std::string & to) {
    mutex_lock guard(mu);
    if (const auto node = counted.extract(from)) {
        total -= node.mapped();
        budget_->release(replace(to, node.mapped()));
    }
}

uint64_t ledger::remove(const std::string & path) {
    mutex_lock guard(mu);
    const auto node = counted.extract(path);
    if (node.empty()) {
        return 0;
    }
    total -= node.mapped();
    budget_->release(node.mapped());
    return node.mapped();
}

bool ledger::has(const std::string & path) const {
    mutex_lock guard(mu);
    return counted.count(path) != 0;
}

uint64_t ledger::bytes_of(const std::string & path) const {
    mutex_lock guard(mu);
    const auto it = counted.find(path);
    return it == counted.end() ? 0 : it->second;
}

std::vector<std::string> ledger::paths_in(const std::string & folder) const {
    mutex_lock               guard(mu);
    std::vector<std::string> out;
    for (const auto & [path, bytes] : counted) {
        if (names::is_in(path, folder)) {
            out.push_back(path);
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

uint64_t ledger::bytes() const {
    mutex_lock guard(mu);
    return total;
}

} // namespace kvtier
