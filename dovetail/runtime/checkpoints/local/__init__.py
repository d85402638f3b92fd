"""The local tier: frequent checkpoints on the hosts' own disks, each with a copy at a peer."""
