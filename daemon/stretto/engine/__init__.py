"""The engine: scheduler, sampler, KV accounting and the thread that owns the model."""
