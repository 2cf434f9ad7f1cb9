// The page's wiring: what the stream brings goes to the parts that show it.
//
//   events ─┬─ node ─► status, fits, pools, seats, admits, swap      twice a second at most
//           └─ pool ─► map, leases                                   when the ledger has changed
import { follow } from "./stream.js";
import { showNode, showConnection } from "./status.js";
import { showFits } from "./fits.js";
import { showPools } from "./pools.js";
import { showSeats } from "./seats.js";
import { PageMap } from "./map.js";
import { Leases } from "./leases.js";
import { showAdmits } from "./admits.js";
import { showSwapIn } from "./swap.js";

const map = new PageMap();
const leases = new Leases((lease) => map.mark(lease));

follow("page/events", {
  node(node) {
    showNode(node);
    showFits(node);
    showPools(node.capacity.pools);
    showSeats(node);
    showAdmits(node.admits);
    showSwapIn(node.swap_in);
    document.documentElement.dataset.sequence = String(node.capacity.sequence);
  },
  pool(pool) {
    map.show(pool);
    leases.show(pool);
  },
  connection: showConnection,
});
