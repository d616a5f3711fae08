// The store as others see it that share its budget: what it could give, and how it gives.
//
// Thread safety: all functions may be called at any time. How a writer makes room for itself: see store_rooms.h.
#pragma once

#include "kvtier/budget.h"

#include <cstdint>

namespace kvtier {

struct store_rooms;

class evictor : public budget_member {
public:
    explicit evictor(store_rooms & rooms) : rooms(rooms) {}

    uint64_t evictable_bytes() const override; // at most
    bool     evict_below(double worth) override;

private:
    store_rooms & rooms;
};

} // namespace kvtier
