"""The cluster's directory of nodes, from both sides. Only here and in `fleet.directories` is Kubernetes known.

::

    node ─ WatchCapacity ─► following ─► pace: is it time? ─► publisher ─┬─► HisparseNode    who it is, what it has
                                                                         └─► Lease           somebody vouches for it
    router ◄─ members, hints ─ fleet.directories.kubernetes_nodes ◄─ reflector: list, then watch ◄─ both

    api        calls to the API server, and what each failure means
    objects    the two objects, as they are written and read
    pace       when a change is written, and how a failure is rested from
"""
