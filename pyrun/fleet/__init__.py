"""Several servers of one model: what routers are told, and what all of them do."""
