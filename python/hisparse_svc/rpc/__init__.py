"""What the two clients share: the calls, how they are sent, and how answers and refusals are read.

::

    target    where a service is                      values    what answers are, as frozen dataclasses
    calls     one function per method                 refusals  what refusals are, as exceptions
    convert   answers to values                       plain     messages to JSON data
    status    a failed call to a refusal              retry     whether to send a call again, and when
                                                      backoff   rests of what is tried for as long as it takes

`values`, `refusals` and `target` import neither grpc nor protobuf, so `import hisparse_svc` stays light.
"""
