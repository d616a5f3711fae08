"""What real agents send: recorded, scrubbed, and replayed against the server."""
