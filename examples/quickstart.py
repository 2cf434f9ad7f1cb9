"""Start a node in this process, reserve memory for a request, and give it back. Needs no GPU.

python examples/quickstart.py
"""

from hisparse_svc import Client, NeverFits, Node, PoolBusy


def unheld_pages(client: Client) -> int:
    """Pages that no request holds: free, or being zeroed for the next one."""
    pages = client.get_capacity().pool("host_pages")
    return pages.free + pages.scrubbing


with Node.embedded(model="glm-5.2", host_pool="1GiB", kv_bytes="20GiB") as node:
    client = node.client

    capacity = client.get_capacity(lengths=[4_096])
    pages = capacity.pool("host_pages")
    print(f"{pages.free} of {pages.total} pages free; {capacity.fits[0].count} requests of 4,096 tokens fit")

    with client.admit(prompt_tokens=4_096, max_new_tokens=256) as held:
        print(f"held: {held.lease.pages} pages, {held.lease.extents}")
        held.commit()
        print(f"free now: {unheld_pages(client)}")

        try:
            client.admit(prompt_tokens=18_000)
        except PoolBusy as busy:
            print(f"busy: {busy.pool}, again in {busy.retry_after_s} s")

    try:
        client.admit(prompt_tokens=1_000_000)
    except NeverFits as never:
        print(f"never fits: {never.limit} is {never.limit_value}")

    print(f"free at the end: {unheld_pages(client)}")
