"""Models over several machines: workers hold a part of one, and llama-server has the rest."""
