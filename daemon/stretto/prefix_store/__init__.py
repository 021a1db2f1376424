"""Known text on disk: KV blocks that survive a restart."""

from stretto.prefix_store.block_file import BlockFile, read_block_file, write_block_file
from stretto.prefix_store.store import DiskPrefixStore, open_prefix_store, store_fingerprint

__all__ = [
    "BlockFile",
    "DiskPrefixStore",
    "open_prefix_store",
    "read_block_file",
    "store_fingerprint",
    "write_block_file",
]
