"""What a node would take of a trace: Mooncake's requests, with their arrivals, lengths and prefixes.

::

    options    how the replay's engine behaves           virtual    in process, in virtual time (the core plays it)
    document   the JSON of `replay`                      live       against a running server, through its own calls
    samples    the bundled trace                         audit      the client's own count of what was handed out
"""
