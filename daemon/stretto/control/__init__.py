"""The control plane on the Unix socket."""
