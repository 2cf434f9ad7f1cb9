use super::*;

const NOW: Moment = Moment::ORIGIN;

fn router(choices: usize) -> Router {
    let settings = Settings { choices, ..Settings::default() };
    Router::new(settings, NOW, &mut Dice::of_seed(5)).unwrap()
}

/// A node of 100 pages and 10 seats with so many of both left.
fn view(pages: u64, seats: u64) -> View {
    let mut view = View { largest_grant_tokens: pages * 64, max_request_tokens: 6_400, ..View::default() };
    view.add(Pool::HostPages, pages, 100);
    view.add(Pool::Seats, seats, 10);
    view.add(Pool::RequestSlots, seats, 10);
    view
}

fn with(choices: usize, views: &[View]) -> (Router, Vec<NodeId>) {
    let mut router = router(choices);
    let ids = views.iter().map(|view| {
        let id = router.add(NOW).unwrap();
        router.watched(id, *view, false, NOW);
        id
    });
    let ids = ids.collect();
    (router, ids)
}

fn best(router: &mut Router, tokens: u64) -> Option<u64> {
    router.choose(&Demand::of_tokens(tokens), &[], NOW).best.map(|candidate| candidate.node.get())
}

#[test]
fn the_node_with_most_left_of_its_fullest_pool_is_asked() {
    // Node 0 has most pages, but one seat; node 1 has plenty of both.
    let (mut router, _) = with(4, &[view(100, 1), view(90, 9), view(50, 10)]);
    assert_eq!(best(&mut router, 640), Some(1));
}

#[test]
fn what_is_asked_for_and_not_answered_is_held_back() {
    let (mut router, ids) = with(4, &[view(100, 1)]);
    let amounts = Demand::of_tokens(640).amounts(0);
    router.asked(ids[0], &amounts);
    assert_eq!(best(&mut router, 640), None);
    router.ended(ids[0], &amounts, Some(true), NOW);
    assert_eq!(best(&mut router, 640), Some(0));
}

#[test]
fn an_older_view_never_overwrites_a_newer_one_unless_the_watch_begins_anew() {
    let (mut router, ids) = with(4, &[View { epoch: 5, sequence: 9, ..view(10, 10) }]);
    router.told(ids[0], View { epoch: 5, sequence: 8, ..view(100, 10) }, NOW);
    router.watched(ids[0], View { epoch: 4, sequence: 99, ..view(100, 10) }, false, NOW);
    assert_eq!(router.node(ids[0]).unwrap().view.unwrap().room[Pool::HostPages], 10);
    router.watched(ids[0], View { epoch: 4, sequence: 99, ..view(100, 10) }, true, NOW);
    assert_eq!(router.node(ids[0]).unwrap().view.unwrap().room[Pool::HostPages], 100);
}

#[test]
fn a_stale_view_is_used_only_where_no_fresh_one_fits() {
    let (mut router, ids) = with(4, &[view(100, 10), view(50, 5)]);
    let later = NOW.saturating_add(FLEET_STALE_AFTER + Duration::from_millis(1));
    router.heard(ids[1], later);
    let demand = Demand::of_tokens(640);
    assert_eq!(router.choose(&demand, &[], later).best.unwrap().node, ids[1]);
    assert_eq!(router.rank(&demand, later)[1].node, ids[0]);
    let demand = Demand::of_tokens(5_000);
    assert_eq!(router.choose(&demand, &[], later).best.unwrap().node, ids[0]);
}

#[test]
fn every_node_is_somewhere_in_the_tally() {
    let draining = View { draining: true, largest_grant_tokens: 0, ..view(100, 10) };
    let small = View { max_request_tokens: 100, ..view(100, 10) };
    let (mut router, ids) = with(4, &[view(100, 10), view(1, 10), draining, small, view(100, 10), view(100, 10)]);
    router.broken(ids[4]);
    for _ in 0..crate::limits::FLEET_FAILURES {
        router.ended(ids[5], &Amounts::ZERO, Some(false), NOW);
    }
    router.add(NOW).unwrap();
    let tally = router.choose(&Demand::of_tokens(640), &[], NOW).tally;
    let Tally { nodes, could, draining, silent, connecting, too_long, most_tokens } = tally;
    assert_eq!((nodes, could, draining, silent, connecting, too_long, most_tokens), (7, 2, 1, 3, 1, 1, 6_400));
    let names: Vec<_> = router.rank(&Demand::of_tokens(640), NOW).iter().map(|ranked| ranked.standing.name()).collect();
    assert_eq!(names, ["fits", "full", "draining", "too_long", "silent", "resting", "unseen"]);
}

#[test]
fn many_routers_with_one_picture_spread_over_the_nodes() {
    let views: Vec<View> = (0..100).map(|node| view(100 - node / 2, 10)).collect();
    let mut hit = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let (mut router, _) = with(4, &views);
        router.dice = Dice::of_seed(seed);
        hit.insert(best(&mut router, 640));
    }
    assert!(hit.len() > 30, "only {} of 100 nodes were chosen", hit.len());
    let (mut router, _) = with(100, &views);
    assert!(best(&mut router, 640) < Some(2), "compared with all, one of the two with most left is the best");
}

#[test]
fn every_fitting_node_is_as_likely_to_be_compared() {
    let mut counts = [0_u32; 10];
    let (mut router, _) = with(1, &[view(100, 10); 10]);
    for _ in 0..10_000 {
        counts[usize::try_from(best(&mut router, 64).unwrap()).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
}

#[test]
fn a_node_is_drawn_as_often_as_it_has_places() {
    let (mut router, _) = with(1, &[view(100, 1), view(100, 2), view(20, 10), view(100, 5)]); // the third has pages for two
    let mut counts = [0_u32; 4];
    for _ in 0..10_000 {
        counts[usize::try_from(best(&mut router, 640).unwrap()).unwrap()] += 1;
    }
    for (count, expected) in counts.into_iter().zip([1_000, 2_000, 2_000, 5_000_u32]) {
        assert!(count.abs_diff(expected) < 250, "{counts:?}");
    }
}

#[test]
fn of_any_fleet_only_nodes_that_fit_are_chosen_and_where_one_fits_one_is() {
    for seed in 0..500 {
        let mut dice = Dice::of_seed(seed);
        let views: Vec<_> = (0..dice.below(12)).map(|_| view(dice.below(101), dice.below(11))).collect();
        let (mut router, ids) = with(1 + usize::try_from(dice.below(6)).unwrap(), &views);
        (0..dice.below(40)).for_each(|_| router.gate.lost());
        let pages = 1 + dice.below(100);
        let fits = |at: usize| views[at].room[Pool::HostPages] >= pages && views[at].room[Pool::Seats] > 0;
        let chosen = best(&mut router, pages * 64).map(|node| usize::try_from(node).unwrap());
        assert_eq!(chosen.is_some(), (0..ids.len()).any(fits), "seed {seed}: {views:?}");
        assert!(chosen.is_none_or(fits), "seed {seed}: {chosen:?} of {views:?}");
    }
}

#[test]
fn a_router_that_others_are_ahead_of_compares_fewer() {
    let views: Vec<View> = (0..50).map(|node| view(100 - node, 10)).collect();
    let mean = |losses: usize| {
        let (mut router, _) = with(8, &views);
        (0..losses).for_each(|_| router.gate.lost());
        (0..200).map(|_| best(&mut router, 640).unwrap()).sum::<u64>() / 200
    };
    assert!(mean(0) < 10, "of eight, the one with most left: {}", mean(0));
    assert!(mean(40) > 15, "as drawn: {}", mean(40));
}

#[test]
fn where_the_prefix_is_the_request_goes_and_needs_less() {
    let (mut router, ids) = with(4, &[View { epoch: 3, ..view(40, 10) }, View { epoch: 3, ..view(100, 10) }]);
    let prefix: Vec<_> = (0..64_u8).map(|page| [page; 32]).collect();
    router.prefixes.went(&prefix, ids[0], 3);
    let demand = Demand { tokens: 80 * 64, prefix };
    let chosen = router.choose(&demand, &[], NOW).best.unwrap();
    assert_eq!((chosen.node, chosen.shared_pages), (ids[0], 64), "16 pages of its own fit in the 40 that are left");
    for _ in 0..FLEET_VAIN_PREFIXES {
        router.placed(ids[0], &demand.prefix, 64, 0);
    }
    assert_eq!(router.choose(&demand, &[], NOW).best.unwrap().node, ids[1], "it keeps no prefixes");
    router.placed(ids[0], &demand.prefix, 0, 64);
    assert_eq!(router.choose(&demand, &[], NOW).best.unwrap().node, ids[0], "it does");
    router.watched(ids[0], View { epoch: 4, ..view(40, 10) }, true, NOW);
    assert_eq!(router.choose(&demand, &[], NOW).best.unwrap().node, ids[1], "a new epoch has none of it");
}

#[test]
fn a_node_that_is_gone_is_no_surprise() {
    let (mut router, ids) = with(4, &[view(100, 10), view(50, 10)]);
    router.remove(ids[0]);
    router.remove(ids[0]);
    router.told(ids[0], view(100, 10), NOW);
    router.ended(ids[0], &Amounts::ZERO, Some(true), NOW);
    assert_eq!(router.broken(ids[0]), Duration::ZERO);
    assert_eq!(best(&mut router, 640), Some(1));
    assert_eq!(router.add(NOW).unwrap().get(), 2, "ids are not used again");
}

#[test]
fn a_setting_out_of_range_is_named() {
    for choices in [0, MAX_FLEET_CHOICES + 1] {
        let settings = Settings { choices, ..Settings::default() };
        let problems = Router::new(settings, NOW, &mut Dice::of_seed(1)).unwrap_err();
        assert_eq!(problems.iter().next().unwrap().field, "choices");
    }
}
