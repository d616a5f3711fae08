#include "kvtier/search.h"

#include "kvtier/prefix_index.h"

#include <utility>

namespace kvtier {

const char * match_source_name(match_source s) {
    switch (s) {
        case match_source::none: return "none";
        case match_source::hot:  return "hot";
        case match_source::warm: return "warm";
        case match_source::cold: return "cold";
    }
    return "unknown";
}

const char * match_kind_name(match_kind k) {
    switch (k) {
        case match_kind::none:         return "none";
        case match_kind::prefix:       return "prefix";
        case match_kind::conversation: return "conversation";
    }
    return "unknown";
}

const char * miss_reason_name(miss_reason r) {
    switch (r) {
        case miss_reason::none:       return "none";
        case miss_reason::empty:      return "empty";
        case miss_reason::diverged:   return "diverged";
        case miss_reason::not_stored: return "not_stored";
        case miss_reason::no_anchor:  return "no_anchor";
    }
    return "unknown";
}

lease::~lease() {
    release();
}

lease::lease(lease && other) noexcept : segments(std::move(other.segments)), anchors(std::move(other.anchors)) {
    other.segments.clear();
    other.anchors.clear();
}

lease & lease::operator=(lease && other) noexcept {
    if (this != &other) {
        release();
        segments.swap(other.segments);
        anchors.swap(other.anchors);
    }
    return *this;
}

void lease::add(std::shared_ptr<segment> s) {
    s->pins++;
    segments.push_back(std::move(s));
}

void lease::add(std::shared_ptr<anchor> a) {
    a->pins++;
    anchors.push_back(std::move(a));
}

void lease::release() {
    for (const auto & s : segments) {
        s->pins--;
    }
    for (const auto & a : anchors) {
        a->pins--;
    }
    segments.clear();
    anchors.clear();
}

} // namespace kvtier
