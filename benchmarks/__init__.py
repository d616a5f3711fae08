"""Measures llama-run against what people would use instead."""
