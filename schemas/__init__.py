"""JSON Schemas (2020-12), one file a wire format. Installed as ``stretto._schemas``; read by ``stretto.schemas``."""
