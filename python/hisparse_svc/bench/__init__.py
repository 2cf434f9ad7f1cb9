"""What `hisparse-svc bench` measures on a machine with a GPU, and `benches/` in more depth.

::

    gpu      timer of captured work, many gigabytes of registered host memory
    scene    hot caches and a pool, set up so that a step misses exactly so many rows; the yardstick
    swap_in  the table: resolve, gather and both, beside memcpy and the best ordered gather
    plots    its pictures
"""
