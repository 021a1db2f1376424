"""The walk of a request, stage by stage."""
