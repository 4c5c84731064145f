"""From rows to gradients: however a step is cut, padded, ordered or rejected, it is the gradient of one formula."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from policy.method.advantage import advantages, group_advantages
from policy.method.batch import MicroBatch, TurnRow, collate, micro_batches, plan
from policy.method.logprob import Scorer, score, token_logprobs
from policy.method.loss import LossConfig, normaliser, policy_loss
from tests.tiny_policy import WIDTH, TinyModel, gradient, some_rows

NORMALISERS = ["sequence", "token", "sequence_token"]


def a_config(name: str) -> LossConfig:
    return LossConfig.model_validate({"normaliser": name})


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on busy cores take twenty times what these sums take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Batches.


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120), st.integers(1, 4))
def test_every_row_is_planned_once_within_the_budget_and_ranks_go_in_step(
    lengths: list[int], budget: int, ranks: int
) -> None:
    shares = plan(lengths, budget, ranks)
    assert sorted(place for share in shares for batch in share for place in batch) == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    for share in shares:
        for batch in share:
            assert len(batch) <= 1 or len(batch) * max(lengths[place] for place in batch) <= budget


def test_the_first_output_token_is_predicted_by_the_last_of_the_prompt() -> None:
    batch = collate([TurnRow((1, 2, 3), (4, 5), (-0.5, -0.25), 1.5), TurnRow((6,), (7,), (-1.0,), -1.0, kept=False)])
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert batch.attention.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.sampled.tolist() == [[False, False, True, True], [True, False, False, False]]
    assert batch.sampler_logprobs.tolist() == [[0, 0, -0.5, -0.25], [-1, 0, 0, 0]]
    assert batch.learned.tolist() == [[False, False, True, True], [False] * 4]
    assert batch.ids[:, 1:][batch.sampled].tolist() == [4, 5, 7]


def test_a_row_without_log_probabilities_is_refused() -> None:
    with pytest.raises(ValueError, match="2 output tokens and 1 log"):
        TurnRow((1,), (2, 3), (0.0,), 1.0)
    with pytest.raises(ValueError, match="0 prompt tokens"):
        TurnRow((), (2,), (0.0,), 1.0)


# Log-probabilities.


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_give_the_log_probabilities_and_gradients_of_all_logits(chunk: int, temperature: float) -> None:
    batch = collate(some_rows())
    whole, chunked = TinyModel(), TinyModel()
    logits = whole(batch.ids, batch.attention)[:, :-1] / temperature
    logs = logits.log_softmax(dim=-1)
    expected = logs.gather(-1, batch.ids[:, 1:, None])[..., 0]
    found = score(chunked, batch, temperature, chunk)
    where = batch.sampled
    torch.testing.assert_close(found.logprobs[where], expected[where], rtol=1e-12, atol=1e-12)
    assert not found.logprobs[~where].any()
    entropy = -(logs.exp() * logs).sum(dim=-1)
    torch.testing.assert_close(found.entropy[where], entropy[where], rtol=1e-12, atol=1e-12)
    assert not found.entropy.requires_grad
    weights = torch.rand(int(where.sum()), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (found.logprobs[where] * weights).sum().backward()
    (expected[where] * weights).sum().backward()
    torch.testing.assert_close(chunked.flat_gradient(), whole.flat_gradient(), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(score(chunked, batch, temperature, chunk).logprobs, found.logprobs)


def test_log_probabilities_of_a_half_precision_model_are_fp32() -> None:
    head = nn.Linear(4, 7).bfloat16()
    hidden = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    logprobs, entropy = token_logprobs(hidden, torch.arange(5), head)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logprobs, head(hidden).float().log_softmax(-1)[torch.arange(5), torch.arange(5)])


def test_what_cannot_be_scored_is_refused() -> None:
    batch = collate(some_rows(2))
    with pytest.raises(ValueError, match="temperature of 0"):
        score(TinyModel(), batch, 0.0)
    capped = TinyModel()
    capped.config = SimpleNamespace(final_logit_softcapping=30.0)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        score(capped, batch)


# The loss.


def formula(logprob: float, behave: float, advantage: float, config: LossConfig) -> float:
    """The objective of one token, case by case."""
    ratio = math.exp(logprob - behave)
    if advantage >= 0:
        return min(ratio, 1 + config.clip_high) * advantage
    value = max(ratio, 1 - config.clip_low) * advantage
    return value if config.dual_clip is None else max(value, config.dual_clip * advantage)


@given(
    st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0)), min_size=1, max_size=5),
    st.floats(-3, 3),
    st.sampled_from([None, 3.0]),
    st.sampled_from(NORMALISERS),
)
def test_the_loss_is_the_formula(
    tokens: list[tuple[float, float]], advantage: float, dual: float | None, name: str
) -> None:
    config = LossConfig.model_validate({"dual_clip": dual, "normaliser": name, "scale": 2.0})
    row = TurnRow((1,), (2,) * len(tokens), tuple(float(torch.tensor(behave)) for _, behave in tokens), advantage)
    batch = collate([row])
    logprobs = torch.tensor([[logprob for logprob, _ in tokens]], dtype=torch.float64)
    found = policy_loss(logprobs, batch.sampler_logprobs.double(), batch, normaliser([row], config), config)
    exact = float(batch.advantages[0])
    gain = sum(
        formula(mine, theirs, exact, config) for (mine, _), theirs in zip(tokens, row.sampler_logprobs, strict=True)
    )
    expected = -gain / (2.0 * (1 if name == "sequence" else len(tokens)))
    assert float(found.loss) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert int(found.tokens) == len(tokens)


def test_normalisers() -> None:
    rows = [TurnRow((1,), (2, 3), (0.0, 0.0), 1.0), TurnRow((1,), (2,), (0.0,), 1.0, kept=False)]
    assert normaliser(rows) == normaliser(rows, a_config("sequence_token")) == 2, "a rejected row counts"
    assert normaliser(rows, a_config("token")) == 2, "its tokens do not"
    assert normaliser([], LossConfig(scale=1000.0)) == 1000


@pytest.mark.parametrize("name", NORMALISERS)
@pytest.mark.parametrize("max_tokens", [1, 37])
def test_the_gradient_does_not_depend_on_micro_batches_and_padding(name: str, max_tokens: int) -> None:
    rows = some_rows()
    config = a_config(name)
    expected = gradient(rows, config)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient(rows, config, max_tokens=max_tokens), expected, rtol=0, atol=1e-10)


@settings(max_examples=5)
@given(st.permutations(range(8)), st.sampled_from(NORMALISERS), st.integers(20, 60))
def test_the_gradient_does_not_depend_on_the_order(order: list[int], name: str, max_tokens: int) -> None:
    rows = some_rows()
    config = a_config(name)
    found = gradient([rows[i] for i in order], config, max_tokens=max_tokens)
    torch.testing.assert_close(found, gradient(rows, config), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NORMALISERS)
def test_ranks_add_up_to_the_gradient_of_one(name: str) -> None:
    """What the ranks' gradients average to, each of them on its own share, blank micro-batches included."""
    rows = some_rows(7)
    config = a_config(name)
    z = normaliser(rows, config)
    for ranks in (2, 5):
        total = torch.zeros(())
        for rank in range(ranks):
            model = TinyModel()
            for batch in micro_batches(rows, 30, rank, ranks):
                part = policy_loss(score(model, batch).logprobs, batch.sampler_logprobs, batch, z, config, ranks)
                part.loss.backward()
            total = total + model.flat_gradient() / ranks
        torch.testing.assert_close(total, gradient(rows, config), rtol=0, atol=1e-10)


class Leaf(nn.Module):
    """A model whose last hidden states are a leaf, to see which of them get a gradient."""

    def __init__(self, batch: MicroBatch) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(*batch.ids.shape, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
        self.head = TinyModel().head

    def get_decoder(self) -> Callable[..., SimpleNamespace]:
        return lambda **_: SimpleNamespace(last_hidden_state=self.hidden)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_only_tokens_that_were_sampled_and_kept_have_a_gradient() -> None:
    batch = collate(some_rows())
    assert not bool(batch.kept.all())
    leaf = Leaf(batch)
    policy_loss(
        score(leaf, batch).logprobs, batch.sampler_logprobs - 0.01, batch, 1.0, LossConfig(dual_clip=None)
    ).loss.backward()
    assert leaf.hidden.grad is not None
    reached = leaf.hidden.grad.abs().sum(dim=-1)
    assert not reached[:, -1].any(), "nothing is predicted by the last token"
    assert not reached[:, :-1][~batch.learned].any()
    assert reached[:, :-1][batch.learned].any()


def test_the_first_step_is_that_of_reinforce() -> None:
    rows = [replace(row, kept=True) for row in some_rows()]
    batch = collate(rows)
    ours, theirs = TinyModel(), TinyModel()
    logprobs = score(ours, batch).logprobs
    found = policy_loss(logprobs, logprobs.detach(), batch, normaliser(rows))
    found.loss.backward()
    plain = score(theirs, batch).logprobs
    (-(plain * batch.advantages[:, None] * batch.sampled).sum() / len(rows)).backward()
    torch.testing.assert_close(ours.flat_gradient(), theirs.flat_gradient(), rtol=0, atol=1e-12)
    assert (int(found.clipped), int(found.dual_clipped), float(found.divergence)) == (0, 0, 0.0)


@pytest.mark.parametrize("name", NORMALISERS)
def test_finite_differences(name: str) -> None:
    rows, config = some_rows(6, seed=3), a_config(name)
    batch, z = collate(rows), normaliser(rows, config)
    model = TinyModel(2)

    def loss() -> Tensor:
        return policy_loss(score(model, batch).logprobs, batch.sampler_logprobs, batch, z, config).loss

    loss().backward()
    place = parameters_to_vector(model.parameters()).detach()
    generator = torch.Generator().manual_seed(5)
    step = 1e-6
    for _ in range(3):
        direction = torch.randn(place.shape, generator=generator, dtype=place.dtype)
        ends = []
        for sign in (1, -1):
            vector_to_parameters(place + sign * step * direction, model.parameters())
            with torch.no_grad():
                ends.append(float(loss()))
        expected = float(model.flat_gradient() @ direction)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("rows", [[], [replace(row, kept=False) for row in some_rows(3)]], ids=["blank", "rejected"])
def test_a_batch_with_nothing_to_learn_has_a_backward_pass_and_no_gradient(rows: list[TurnRow]) -> None:
    batch = collate(rows)
    model = TinyModel()
    found = policy_loss(score(model, batch).logprobs, batch.sampler_logprobs, batch, normaliser(rows))
    assert float(found.loss.detach()) == 0
    found.loss.backward()
    assert all(weight.grad is not None for weight in model.parameters()), "every weight takes part, for the ranks' sake"
    assert not model.flat_gradient().any()


@pytest.mark.parametrize("logprob", [None, math.nan, -math.inf])
@pytest.mark.parametrize("max_tokens", [20, 10_000])
def test_rejecting_a_row_leaves_the_contribution_of_the_others_as_it_was(
    logprob: float | None, max_tokens: int
) -> None:
    """To the last bit, whatever the rejected row holds: as with an advantage of 0, under the same normaliser."""
    rows = [replace(row, kept=True) for row in some_rows()]
    victim = rows[3] if logprob is None else replace(rows[3], sampler_logprobs=(logprob,) * len(rows[3].output_ids))
    rejected = [*rows[:3], replace(victim, kept=False), *rows[4:]]
    worthless = [*rows[:3], replace(rows[3], advantage=0.0), *rows[4:]]
    assert normaliser(rejected) == normaliser(rows)
    assert torch.equal(gradient(rejected, max_tokens=max_tokens), gradient(worthless, max_tokens=max_tokens))
    whole = gradient([rows[3]], z=8.0) + gradient([*rows[:3], *rows[4:]], z=8.0)
    torch.testing.assert_close(gradient(rows), whole, rtol=0, atol=1e-12)


def token_gradients(rows: list[TurnRow], config: LossConfig) -> Tensor:
    """Gradient of the loss with respect to each token's log-probability, [B, L - 1]."""
    batch = collate(rows)
    logprobs = score(TinyModel(), batch).logprobs.detach().requires_grad_()
    policy_loss(logprobs, batch.sampler_logprobs, batch, normaliser(rows, config), config).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


def test_token_by_token_no_other_row_feels_a_rejection() -> None:
    rows = [replace(row, kept=True) for row in some_rows()]
    others = [i for i in range(8) if i != 3]
    rejected = [*rows[:3], replace(rows[3], kept=False), *rows[4:]]
    before, after = (token_gradients(each, LossConfig()) for each in (rows, rejected))
    assert torch.equal(before[others], after[others])
    assert not after[3].any()
    by_token = token_gradients(rejected, a_config("token"))
    assert not torch.equal(token_gradients(rows, a_config("token"))[others], by_token[others]), "the negative control"


def test_failed_evaluations_change_no_gradient_of_the_others() -> None:
    """Rows whose evaluation failed are as though never sampled: no 0, no share in a baseline or in the normaliser."""
    chance = random.Random(4)
    groups: list[list[list[float | None]]] = [
        [[chance.choice([0.0, 1.0, 2.5]) for _ in range(3)] for _ in range(4)] for _ in range(5)
    ]
    failures = [(0, 1, 2), (2, 0, 2), (4, 3, 2), (4, 1, 2), (1, 0, 0), (3, 2, 1)]
    for group, trajectory, turn in failures:
        groups[group][trajectory][turn] = None
    texts = some_rows(60, seed=9)

    def rows_of(kinds: list[list[list[float | None]]]) -> list[TurnRow]:
        found = []
        for g, rewards in enumerate(kinds):
            for i, row in enumerate(group_advantages(rewards)):
                for t, advantage in enumerate(row):
                    if advantage is not None:
                        found.append(replace(texts[(g * 4 + i) * 3 + t], advantage=advantage, kept=True))
        return found

    rows = rows_of(groups)
    assert len(rows) == 60 - (3 * 4 + 1 + 2), "a failure masks its turn and those before it"
    never = [[list(row) if None not in row else _after_the_last_failure(row) for row in group] for group in groups]
    assert rows == rows_of(never)
    assert torch.equal(gradient(rows), gradient(rows_of(never)))
    wrong = rows_of([[[0.0 if v is None else v for v in row] for row in group] for group in groups])
    assert wrong[: len(rows)] != rows, "the negative control: as reward 0 they would"
    whole = [list(group) for group in groups]
    untouched = [i for i in range(5) if not any(None in row for row in whole[i])]
    assert untouched == [], "every group lost something, and each only for itself:"
    assert group_advantages(groups[0]) == group_advantages([*groups[0], [None]])[:4]


def _after_the_last_failure(row: list[float | None]) -> list[float | None]:
    """The same returns, given as a trajectory whose earlier turns have none."""
    last = max(turn for turn, reward in enumerate(row) if reward is None)
    return [None] * (last + 1) + row[last + 1 :]


@pytest.mark.parametrize("ratio", [1e-4, 0.5, 2.0, 1e30])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_far_ratios_are_clipped_counted_and_finite(ratio: float, advantage: float) -> None:
    batch = collate([TurnRow((1,), (2,), (0.0,), advantage)])
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    found = policy_loss(logprobs, batch.sampler_logprobs, batch, 1.0)
    found.loss.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    clipped = (ratio > 1.28) if advantage > 0 else (ratio < 0.8)
    dual = advantage < 0 and ratio > 3
    assert (int(found.clipped), int(found.dual_clipped)) == (clipped, dual)
    assert bool(logprobs.grad.any()) is not (clipped or dual)


def test_a_tabular_policy_learns_the_best_arm() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    rewards = [0.1, 0.2, 1.0, 0.5]
    optimiser = torch.optim.SGD([logits], lr=1.0)
    for _ in range(200):
        logs = logits.log_softmax(dim=-1)
        arms = torch.multinomial(logs.exp().detach(), 8, replacement=True, generator=generator).tolist()
        found = advantages([[rewards[arm]] for arm in arms])
        known = logs.tolist()
        rows = [TurnRow((0,), (arm,), (known[arm],), row[0] or 0.0) for arm, row in zip(arms, found, strict=True)]
        batch = collate(rows)
        optimiser.zero_grad()
        policy_loss(logs[batch.ids[:, 1:]], batch.sampler_logprobs, batch, normaliser(rows)).loss.backward()
        optimiser.step()
    assert float(logits.detach().softmax(dim=-1) @ torch.tensor(rewards, dtype=torch.float64)) > 0.95


def test_a_scorer_is_the_function_as_a_module() -> None:
    batch = collate(some_rows(3))
    model = TinyModel()
    assert torch.equal(Scorer(model, 0.7, 2)(batch).logprobs, score(model, batch, 0.7, 2).logprobs)
