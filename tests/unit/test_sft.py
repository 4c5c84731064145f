"""Only answers are learned, rows are what a sampler would meet, and a stopped run goes on as if it had not been."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig as TrlConfig

from drkernel_q.errors import BadInput, BadModel, BadSettings, Cancelled, MissingExtra
from drkernel_q.trajectory import Message
from policy.cli.sft import command
from policy.config import load_config, presets
from policy.model.model import load_model, load_tokenizer, make_model
from policy.model.tokenizer import END, make_tokenizer
from policy.sft.config import DataConfig, LoraConfig, OptimizerConfig, SftConfig, SftResult
from policy.sft.conversation import IGNORED, encode_conversations, read_conversations, split_conversations
from policy.sft.rows import Rows
from policy.sft.run import make_trainer, one_device, run_sft

#: Drops the thoughts of all answers but the last, as the templates of some models do.
REWRITES = (
    "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' -}}"
    "{{- (m['content'] if loop.last else m['content'].split('</think>')[-1]) + eos_token -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def conversation(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"times {number % 5}, item {number}"},
        {"role": "assistant", "content": f"y = x * {number % 5}\n"},
        {"role": "user", "content": "plus"},
        {"role": "assistant", "content": f"\ny = x + {number % 5}"},
    ]


ROWS = [{"messages": conversation(number), "uuid": str(number)} for number in range(24)]
ANSWERS = {f"y = x * {n}\n{END}\ny = x + {n}{END}" for n in range(5)}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of small tensors wait for each other longer than they compute, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    make_model(folder / "model", "tiny", [m["content"] for row in ROWS for m in row["messages"]], vocabulary=300)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(folder / "model")


def config(folder: Path, **changes: Any) -> SftConfig:
    values: dict[str, Any] = {
        "model": str(folder / "model"),
        "data": DataConfig(files=(folder / "data.jsonl",), validation_share=0.2, max_tokens=128),
        "optimizer": OptimizerConfig(learning_rate=3e-3),
        "max_steps": 6,
        "batch_size": 4,
        "micro_batch_size": 2,
        "precision": "float32",
        "gradient_checkpointing": False,
        "trackers": (),
    }
    return SftConfig.model_validate(values | changes)


def messages(*pairs: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message.model_validate({"role": role, "content": content}) for role, content in pairs)


@pytest.mark.parametrize("packing", [False, True])
def test_what_a_batch_learns_is_the_answers_with_their_ends(folder: Path, tmp_path: Path, packing: bool) -> None:
    data = DataConfig(files=(folder / "data.jsonl",), validation_share=0, max_tokens=128, packing=packing)
    model, tokenizer = load_model(folder / "model")
    rows = Rows(data, tokenizer)
    trainer = make_trainer(config(folder, data=data), tmp_path, model, tokenizer, rows)
    learned = []
    for batch in trainer.get_train_dataloader():
        labels = batch["labels"]
        starts = (batch["position_ids"] == 0) if packing else torch.zeros_like(labels, dtype=torch.bool)
        for row, begins in zip(labels, starts, strict=True):
            # A packed row is taken apart where positions begin anew.
            pieces = torch.tensor_split(row, begins.nonzero().flatten()[1:]) if packing else [row]
            learned += [tokenizer.decode(piece[piece != IGNORED]) for piece in pieces if (piece != IGNORED).any()]
        inputs = batch["input_ids"]
        assert (labels[labels != IGNORED] == inputs[labels != IGNORED]).all()
    assert len(learned) == len(ROWS)
    assert set(learned) == ANSWERS


def test_the_mask_is_that_of_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = conversation(3)
    (row,) = encode_conversations(tokenizer, [messages(*((m["role"], m["content"]) for m in chat))], 128).rows
    marked = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    assert row.input_ids == marked["input_ids"]
    assert [int(label != IGNORED) for label in row.labels] == marked["assistant_masks"]


def test_a_template_that_rewrites_history_makes_a_row_a_turn() -> None:
    tokenizer = make_tokenizer(["think of y"], vocabulary=300)
    tokenizer.chat_template = REWRITES
    first, second = "<think>1</think>b", "<think>2</think>d"
    chat = messages(("user", "a"), ("assistant", first), ("user", "c"), ("assistant", second))
    rows = encode_conversations(tokenizer, [chat], 128).rows
    learned = [tokenizer.decode([label for label in row.labels if label != IGNORED]) for row in rows]
    assert learned == [f"{first}{END}", f"{second}{END}"]
    seen = f"<|user|>a{END}<|assistant|>b{END}<|user|>c{END}<|assistant|>{second}{END}"
    assert tokenizer.decode(rows[1].input_ids) == seen


@pytest.mark.parametrize("template", ["{{ messages[0]['content'] }}", REWRITES.replace("<|assistant|>", "<|bot|>")])
def test_a_template_that_cannot_be_trained_on_is_refused(template: str) -> None:
    tokenizer = make_tokenizer(["text"], vocabulary=300)
    tokenizer.chat_template = template
    with pytest.raises(BadModel, match="chat template"):
        encode_conversations(tokenizer, [messages(("user", "a"), ("assistant", "b"))], 128)


def test_what_does_not_fit_is_left_out_whole_and_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = messages(("user", "a"), ("assistant", "bc"), ("user", "d"), ("assistant", "e" * 50), ("user", "f"))
    encoded = encode_conversations(tokenizer, [chat], 20)
    assert [tokenizer.decode(row.input_ids) for row in encoded.rows] == [f"<|user|>a{END}<|assistant|>bc{END}"]
    assert encoded.left_out == 1
    assert encode_conversations(tokenizer, [chat], 20, "last").rows == []
    (row,) = encode_conversations(tokenizer, [chat], 128, "last").rows
    assert tokenizer.decode([label for label in row.labels if label != IGNORED]) == f"{'e' * 50}{END}"


def test_every_file_format_gives_the_same(tmp_path: Path) -> None:
    from datasets import Dataset

    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    Dataset.from_list(ROWS).to_parquet(str(tmp_path / "rows.parquet"))
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "rows.jsonl").symlink_to(tmp_path / "rows.jsonl")
    names = ["rows.jsonl", "rows.parquet", "saved", "both"]
    first, *others = (list(read_conversations([tmp_path / name])) for name in names)
    assert len(first) == len(ROWS)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": 1}', "row 1, has no `messages`"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "row 1, message 0.role"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no question with an answer"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "no question with an answer"),
        ("not json", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadInput, match=f"rows.jsonl.*{said}"):
        list(read_conversations([file]))


def test_a_problem_is_on_one_side_of_the_split_only() -> None:
    chats = [messages(("user", f"problem {i % 10}"), ("assistant", f"answer {i}")) for i in range(60)]
    train, aside = split_conversations(chats, 0.25)
    assert len(aside) == 12  # two problems, all that is said about them
    assert {chat[0] for chat in train} & {chat[0] for chat in aside} == set()
    assert split_conversations(chats[::-1], 0.25)[1] == aside[::-1]
    assert split_conversations(chats[:1], 0.9) == (chats[:1], [])


@pytest.mark.parametrize("preset", ["tiny", "small", "paper"])
def test_presets_are_whole(preset: str) -> None:
    flags = {"model": "m", "data.files": (Path("x"),)}
    assert preset in presets("sft")
    made = load_config(SftConfig, "sft", preset, flags=flags)
    if preset == "paper":
        assert (made.optimizer.learning_rate, made.batch_size, made.epochs) == (1e-6, 256, 4)


def test_a_tracker_that_is_not_installed_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match="swanlab is not installed"):
        run_sft(config(folder, trackers=("swanlab",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(folder)[0].state_dict())


def figures(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(folder: Path) -> SftResult:
    return run_sft(config(folder, save_every=2), folder / "whole")


def test_a_run_learns_and_says_what_it_came_to(folder: Path, whole: SftResult) -> None:
    steps = [line for line in figures(folder / "whole") if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert whole.loss == steps[-1]["loss"]
    assert whole.validation_loss is not None
    assert whole.validation_accuracy is not None
    assert load_tokenizer(whole.folder).chat_template == load_tokenizer(folder / "model").chat_template


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_where_it_would_have(folder: Path, whole: SftResult, tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if line.startswith("step 3/"):
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = tmp_path / "stopped"
    with pytest.raises(Cancelled, match="after step 4"):
        run_sft(config(folder, save_every=2), stopped, tell=stop)
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # what a kill -9 may leave
    with pytest.raises(BadSettings, match=r"seed \(0, now 1\)"):
        run_sft(config(folder, save_every=2, seed=1), stopped, resume=True)
    result = run_sft(config(folder, save_every=2), stopped, resume=True)
    expected = weights(whole.folder)
    assert all(torch.equal(value, expected[name]) for name, value in weights(result.folder).items())
    assert result.validation_loss == whole.validation_loss
    assert figures(stopped) == figures(folder / "whole")
    with pytest.raises(BadSettings, match="is finished"):
        run_sft(config(folder, save_every=2), stopped, resume=True)
    with pytest.raises(BadSettings, match="not empty"):
        run_sft(config(folder, save_every=2), stopped)


@pytest.mark.slow
def test_micro_batches_and_checkpointing_of_gradients_change_nothing(folder: Path, tmp_path: Path) -> None:
    data = DataConfig(files=(folder / "data.jsonl",), validation_share=0, max_tokens=128)

    def losses(name: str, **changes: Any) -> list[float]:
        assert run_sft(config(folder, max_steps=3, data=data, **changes), tmp_path / name).validation_loss is None
        return [line["loss"] for line in figures(tmp_path / name) if "loss" in line]

    expected = losses("plain", micro_batch_size=4)
    assert losses("small", micro_batch_size=1, gradient_checkpointing=True) == pytest.approx(expected, rel=1e-4)


def test_packed_conversations_do_not_see_each_other(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(folder / "model")

    def loss(packing: bool, size: int) -> float:
        data = DataConfig(files=(folder / "data.jsonl",), validation_share=0, max_tokens=1024, packing=packing)
        made = config(folder, data=data, batch_size=size, micro_batch_size=size)
        trainer = make_trainer(made, tmp_path, model, tokenizer, Rows(data, tokenizer))
        (batch,) = trainer.get_train_dataloader()
        with torch.no_grad():
            return float(trainer.compute_loss(trainer.model, dict(batch)))

    assert loss(packing=True, size=1) == pytest.approx(loss(packing=False, size=len(ROWS)), rel=1e-5)


@pytest.mark.parametrize("there", [0, 1, 2, 8])
def test_without_a_launcher_one_device_is_enough(there: int, tmp_path: Path) -> None:
    arguments = TrlConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    arguments._n_gpu = there
    assert one_device(arguments).n_gpu == min(there, 1)


@pytest.mark.slow
def test_adapters_are_kept_and_merged(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    made = config(folder, lora=LoraConfig(rank=4), precision="bfloat16", max_steps=2, gradient_checkpointing=True)
    result = run_sft(made, tmp_path / "lora")
    assert 0 < result.trained_parameters < result.parameters / 2
    base, _ = load_model(folder / "model")
    merged = PeftModel.from_pretrained(base.to(torch.bfloat16).float(), str(tmp_path / "lora" / "adapter"))
    expected = merged.merge_and_unload().state_dict()
    found = weights(result.folder)
    assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in found.items())
    start = weights(folder / "model")
    assert any(not torch.allclose(value, start[name], atol=1e-3) for name, value in found.items())


@pytest.mark.slow
def test_command_trains_and_says_nothing_that_the_libraries_say(folder: Path, tmp_path: Path) -> None:
    arguments = ["--preset", "tiny", "--model", str(folder / "model"), "--data", str(folder / "data.jsonl")]
    arguments += ["--device", "cpu", "--steps", "2", "--set", "log_every=1", "--batch", "32"]
    preview = json.loads(CliRunner().invoke(command, [*arguments, "--dry-run", "--json"]).stdout)
    assert (preview["rows"], preview["steps"]) == (23, 2)
    assert preview["learned_of_the_first_row"].endswith(END)
    done = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(str(tmp_path / "run" / "model"))
    assert done.stdout.count("\n") == 1
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["loading", "step", "step", "step"]
    assert list((tmp_path / "run" / "tensorboard").iterdir())
