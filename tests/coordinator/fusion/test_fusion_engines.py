"""Every engine against a NumPy program with a loop over pairs, written from the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from _fusing import Fleet, Loops, Run, Turn, assert_bits, columns_of, copied, flattened, follow, loops_turn, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.fusion import ENGINES, with_engine
from coordinator.fusion.history import History
from coordinator.fusion.hybrid import Hybrid
from coordinator.fusion.lean import Lean
from coordinator.fusion.potential import Potential
from edgepfl.algorithms._pairs import Plain
from edgepfl.algorithms.ditto import Ditto
from edgepfl.algorithms.fpfc import FPFC, PairRule
from edgepfl.errors import ConfigError, RunError

pytestmark = pytest.mark.usefixtures("small_slabs")

ANY = {"plain": Plain, **{name: engine for name, engine in ENGINES.items() if name != "potential"}}
"""Those that any device may stay away from."""

CLUSTERS = Fleet.of(9, 12)
NOISY = Fleet.of(9, 12, apart=3.0, noise=1.5)


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("both", [False, True], ids=["either", "both"])
@pytest.mark.parametrize("share", [0.35, 1.0])
def test_each_engine_does_what_the_paper_says_in_all_regions(name: str, both: bool, share: float, device: str) -> None:  # noqa: FBT001  a parameter
    turns = sampled(9, share, 25 if share < 1 else 12, both=both)
    loops = follow(ANY[name], CLUSTERS, turns, device, every=8)
    noisy = follow(ANY[name], NOISY, turns, device, every=8)
    assert loops.regions | noisy.regions == {1, 2, 3, 4}
    assert loops.became_flat


def test_the_potential_form_does_so_where_all_take_part(device: str) -> None:
    regions = set()
    for fleet in (CLUSTERS, NOISY):
        turns = sampled(9, 1.0, 20)
        turns += [replace(turn, rho=1.7, lam=0.5) for turn in sampled(9, 1.0, 6)[1:]]
        regions |= follow(Potential, fleet, turns, device, every=3).regions
    assert regions == {1, 2, 3, 4}


def test_the_potential_form_needs_no_vector_while_pairs_move_alike() -> None:
    fleet = Fleet.of(9, 12, apart=0.3, noise=0.1)
    run = Run(fleet, Potential(columns_of(fleet, "cpu"), {}))
    for turn in sampled(9, 1.0, 8, lam=3.0, xi=0.5):
        run.turn(turn)
    assert isinstance(run.engine, Potential)
    assert run.engine.kept == 0
    assert run.engine.shared.sum() == 9 * 8
    assert run.engine.theta_norms().max() > 1e-3
    with pytest.raises(RunError, match="2 of 9 devices took part"):
        run.turn(Turn((2, 5)))


@pytest.mark.parametrize("name", ANY)
def test_everything_may_change_on_the_way(name: str, device: str) -> None:
    """The penalty, rho, the rule and the fleet, with columns that are no parameters."""
    fleet = Fleet.of(9, 12, unpaired=3)
    turns = [
        replace(turn, newcomers={0: 4, 5: 3, 11: 2}.get(number, 0), rho=rho, lam=lam, both=number % 7 > 3)
        for number, (rho, lam) in enumerate(zip([1, 2, 0.6, 1.3] * 6, [0, 0.5, 0.8, 0.8, 1.5, 0.4] * 4, strict=True))
        for turn in sampled(4 if number < 5 else 7 if number < 11 else 9, 0.5, 1, seed=number)
    ]
    loops = follow(ANY[name], fleet, turns, device, every=2)
    assert loops.regions == {1, 2, 3, 4}
    assert {not np.abs(theta[-3:]).any() for theta in loops.theta.values()} == {True}


def test_newcomers_join_the_potential_form(device: str) -> None:
    turns = [*sampled(5, 1.0, 4), replace(sampled(9, 1.0, 1)[0], newcomers=4), *sampled(9, 1.0, 6)[1:]]
    follow(Potential, CLUSTERS, turns, device)


class Forgetful(Lean):
    """Drops a pair's vector in the update in which it becomes flat."""

    def _settle(
        self, i: torch.Tensor, j: torch.Tensor, ids: torch.Tensor, flat: torch.Tensor, fresh: torch.Tensor
    ) -> None:
        now = flat | (self.ledger.c[i, j] == 1)
        plain = self.ledger.plain.clone()
        plain[i, j] = plain[j, i] = now
        self.ledger = replace(self.ledger, plain=plain)
        super()._settle(i, j, ids, now, fresh & ~now)


def two_that_part() -> tuple[Fleet, list[Turn]]:
    """Two devices that are fused first, and flat from the round on in which the penalty is small."""
    fleet = Fleet.of(3, 6, clusters=3, apart=3.0, noise=0.1)
    return fleet, [Turn((0, 1, 2), 3, lam=2.0)] + [Turn((0, 1, 2), lam=2.0)] * 4 + [Turn((0,), lam=0.3)] + [Turn((1,))]


@pytest.mark.parametrize("name", ANY)
def test_a_pair_that_has_just_become_flat_has_its_old_dual_in_it(name: str, device: str) -> None:
    fleet, turns = two_that_part()
    assert follow(ANY[name], fleet, turns, device).became_flat >= 2
    with pytest.raises(AssertionError, match="Mismatch"):
        follow(Forgetful, fleet, turns, device)


def test_a_flat_pair_costs_no_vector_and_its_memory_is_given_back() -> None:
    fleet, turns = two_that_part()
    run = Run(fleet, Lean(columns_of(fleet, "cpu"), {}))
    kept = []
    for turn in [*turns, Turn((0, 1, 2), lam=0.3), Turn((0, 1, 2), lam=0.3)]:
        run.turn(turn)
        assert isinstance(run.engine, Lean)
        kept.append(run.engine.kept)
    assert kept == [3, 3, 3, 3, 3, 3, 3, 1, 0]
    assert not run.engine.dump()["vectors"]


def test_the_hybrid_goes_over_once_uploads_outnumber_vectors() -> None:
    engine = Hybrid(columns_of(CLUSTERS, "cpu"), {})
    run = Run(CLUSTERS, engine)
    forms, uploads = [], 0
    for turn in sampled(9, 0.35, 60):
        run.turn(turn)
        forms.append(type(engine.inside))
        if isinstance(engine.inside, History):
            uploads = engine.kept
            assert uploads <= 1.1 * (int(engine.inside.needed.sum()) // 2 + 9)
    assert forms.index(Lean) > 5
    assert forms == [History] * forms.index(Lean) + [Lean] * (60 - forms.index(Lean))
    assert engine.kept < uploads


def test_uploads_that_nobody_refers_to_are_dropped() -> None:
    """Without a penalty all pairs are flat, so only the models of now are left."""
    run = Run(CLUSTERS, History(columns_of(CLUSTERS, "cpu"), {}))
    for turn in sampled(9, 0.35, 30, lam=0.0):
        run.turn(turn)
    assert isinstance(run.engine, History)
    assert run.engine.kept == 9
    assert len(run.engine.dump()["rows"]) <= 4  # of three rows: nine live, and one in eight may be dead


@pytest.mark.parametrize("name", ENGINES)
def test_a_dump_has_new_objects_for_what_changed_and_only_for_that(name: str) -> None:
    run = Run(CLUSTERS, ENGINES[name](columns_of(CLUSTERS, "cpu"), {}))
    before: dict[str, torch.Tensor] = {}
    content: dict[str, torch.Tensor] = {}
    same = set()
    for turn in sampled(9, 1.0 if name == "potential" else 0.35, 30):
        run.turn(turn)
        after = flattened(run.engine.dump())
        for key, tensor in after.items():
            assert tensor.dtype in {torch.float64, torch.int64, torch.bool}
            assert torch.isfinite(tensor).all()
            if before.get(key) is tensor:
                assert torch.equal(content[key], tensor), key
                same.add(key.partition("/")[0])
        before, content = after, {key: tensor.clone() for key, tensor in after.items()}
        again = flattened(run.engine.dump())
        assert all(again[key] is tensor or key == "form/" or tensor.dim() == 0 for key, tensor in after.items())
    if name == "history":
        assert "rows" in same  # full pages are never written again


@pytest.mark.parametrize("name", ["lean", "history", "potential"])
def test_another_forms_dump_is_refused(name: str) -> None:
    run = Run(CLUSTERS, Plain(columns_of(CLUSTERS, "cpu"), {}))
    run.turn(sampled(9, 1.0, 1)[0])
    with pytest.raises(RunError, match=f"in the form plain, and this engine reads {name}"):
        ENGINES[name](columns_of(CLUSTERS, "cpu"), run.engine.dump())


def test_an_algorithm_gets_the_engine_that_is_named() -> None:
    settings_of = FPFC(lam=0.3, pair_rule=PairRule.BOTH)
    for name, engine in ENGINES.items():
        found = with_engine(settings_of, name)
        assert isinstance(found, FPFC)
        assert (found.opening, found.lam, found.pair_rule) == (engine, 0.3, PairRule.BOTH)
        assert (type(found).__name__, type(found).__module__) == ("FPFC", FPFC.__module__)
        assert replace(found, lam=0.4).opening is engine
    assert type(with_engine(settings_of)) is type(with_engine(settings_of, "hybrid"))
    ditto = Ditto()
    assert with_engine(ditto, "lean") is ditto
    with pytest.raises(ConfigError, match="no engine 'fast'") as caught:
        with_engine(ditto, "fast")
    assert "hybrid" in caught.value.remedy


@st.composite
def schedules(draw: st.DrawFn) -> list[Turn]:
    """Rounds in which anything may change."""
    count, turns = 0, []
    for number in range(draw(st.integers(2, 10))):
        newcomers = draw(st.integers(1 if number == 0 else 0, min(4, 8 - count)))
        count += newcomers
        active = draw(st.sets(st.integers(0, count - 1), min_size=1).map(sorted))
        lam, rho = draw(st.sampled_from([0.0, 0.3, 0.8, 2.5])), draw(st.sampled_from([0.5, 1.0, 2.0]))
        turns.append(Turn(tuple(active), newcomers, lam, rho, draw(st.booleans()), 0.1))
    return turns


@settings(max_examples=25)
@given(schedules(), st.sampled_from(sorted(ANY)), st.booleans())
def test_any_schedule(turns: list[Turn], name: str, unpaired: bool) -> None:  # noqa: FBT001  drawn
    follow(ANY[name], Fleet.of(8, 7, unpaired=2 * unpaired), turns, every=4)


@settings(max_examples=25)
@given(schedules(), st.sampled_from(sorted(ANY)), st.data())
def test_a_restored_engine_goes_on_bit_for_bit(turns: list[Turn], name: str, data: st.DataObject) -> None:
    fleet = Fleet.of(8, 7)
    columns = columns_of(fleet, "cpu")
    steady, restored = (Run(fleet, ANY[name](columns, {})) for _ in range(2))
    for turn in turns:
        if restored.engine.count and data.draw(st.booleans(), label="restored"):
            restored.engine = ANY[name](columns, copied(restored.engine.dump()))
        np.testing.assert_array_equal(steady.turn(turn), restored.turn(turn))
    assert_bits(steady.engine.dump(), restored.engine.dump())


def test_a_restored_potential_engine_goes_on_bit_for_bit() -> None:
    columns = columns_of(NOISY, "cpu")
    steady, restored = (Run(NOISY, Potential(columns, {})) for _ in range(2))
    for turn in sampled(9, 1.0, 12):
        np.testing.assert_array_equal(steady.turn(turn), restored.turn(turn))
        restored.engine = Potential(columns, copied(restored.engine.dump()))
    assert_bits(steady.engine.dump(), restored.engine.dump())


@pytest.mark.parametrize("name", ENGINES)
def test_rows_in_single_precision_follow_to_single_precision(name: str) -> None:
    fleet, loops = CLUSTERS, Loops(CLUSTERS.first, CLUSTERS.unpaired)
    columns = columns_of(fleet, "cpu")
    single = replace(columns, first=columns.first.float())
    engine = ENGINES[name](single, {})
    for turn in sampled(9, 1.0 if name == "potential" else 0.35, 25):
        engine.join(turn.newcomers)
        zeta = engine.centres(turn.active, turn.rho)
        assert zeta.dtype == torch.float32
        np.testing.assert_allclose(zeta.numpy(), loops_turn(fleet, loops, turn), atol=1e-5)
        uploaded = torch.tensor(np.stack([loops.omega[i] for i in turn.active]), dtype=torch.float32)
        engine.move(turn.active, uploaded, turn.scad, both=turn.both)
    assert engine.theta_norms().dtype == engine.omega_norms().dtype == torch.float64
