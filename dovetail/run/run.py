"""Run: a trained run, opened for reading.

Opening reads `run.json` alone. Config, tokenizer and parameters are loaded at first use, from the
files of the run folder: neither the corpus nor the folders that it was trained in are needed.
Reading changes nothing on disk, so a run can be read while another process trains it.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import (
    ConfigError,
    ConfigOf,
    RunError,
    did_you_mean,
    import_packages,
    missing_entry_points,
    missing_imports,
)
from dovetail.data import HasPreparedData, Tokenizer, has_tokenizer, stop_tokens_of
from dovetail.generate import (
    Generation,
    GenerationChunk,
    Generator,
    Greedy,
    Sampler,
    Sampling,
    check_token_ids,
)
from dovetail.generate.interfaces import Prompt
from dovetail.interop import ExportReport, ModelSource, end_tokens_of, export_adapter, export_hf
from dovetail.learner import main_loss
from dovetail.module import BoundModule, functional, parameter_specs, token_batch
from dovetail.parallel import Placement, use_placement
from dovetail.run.contents import check_tokenizer, use_contents
from dovetail.run.parameters import DamagedStepError, LoadedParameters, RunParameters
from dovetail.runtime import (
    ArraySpecs,
    RunFolder,
    explained_failures,
    read_metrics,
    use_compilation_cache,
)
from dovetail.trainer import Evaluation, Evaluator, KnowsTrainedParameters
from dovetail.trainer.tasks import tasks as registered_tasks

if TYPE_CHECKING:
    from dovetail.data import HasTokenizer
    from dovetail.runtime.goodput import Goodput
    from dovetail.trainer import Trainer

# The subpackages whose components a config may name.
_COMPONENTS = ("data", "layers", "learner", "models", "parallel", "run", "runtime", "trainer")

_MAX_ANCESTORS = 20  # runs that started from each other; more is a cycle
_LENGTH_MULTIPLE = 64  # of a KV cache, so that few programs are compiled


class GenerateOptions(TypedDict, total=False):
    """The options of generation, with their defaults.

    Attributes:
        max_new_tokens: the largest number of new tokens (128).
        temperature: the sampling temperature (0.8); 0 is greedy.
        top_k: samples from the k most probable tokens (None: all).
        top_p: nucleus sampling: samples from the smallest set with this probability (None: all).
        stop: strings that end the text (none).
        seed: the random seed (0).
        inputs: named inputs of the layers' context, for the prompts alone: arrays with one row per
            prompt, such as the source of an encoder (none).
        axis_positions: for each prompt the positions of its tokens on several axes [tokens, axes],
            if they have several (none).
    """

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop: Sequence[str]
    seed: int
    inputs: Mapping[str, Any] | None
    axis_positions: Sequence[Any] | None


class Run:
    """A trained run.

    run = Run("runs/tiny-lm")
    run.generate("def main(", max_new_tokens=64).text
    run.logits("def main(").shape
    """

    def __init__(self, path: str | Path, *, imports: Sequence[str] = ()) -> None:
        """Opens a run folder.

        Args:
            path: the run folder, such as runs/tiny-lm.
            imports: your own packages that it was trained with. They are imported here; a package
                that only the run folder names never is, because that would run its code.
        """
        self.folder = RunFolder(Path(path))
        self.about = self.folder.about()
        self._generator = functools.lru_cache(maxsize=4)(self._new_generator)
        import_packages(imports)
        if missing := missing_imports(self.about.get("imports", [])):
            options = " ".join(f"--import {name}" for name in missing)
            raise RunError(
                f"{path}: this run was trained with {options}; pass it (in Python: "
                f"imports={missing})."
            )

    def __repr__(self) -> str:
        """Returns the call that opens it."""
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @functools.cached_property
    def config(self) -> Trainer.Config:
        """The complete config of the run."""
        load_all_components()
        try:
            return cast("Trainer.Config", self.folder.config())
        except ConfigError as error:
            missing = missing_entry_points(self.about.get("entry_points", []))
            if not missing:
                raise
            raise RunError(
                f"{error} The run was trained with an installed package that provides the module "
                f"{missing[0]!r}. It is not installed here; install it."
            ) from error

    @functools.cached_property
    def trainer(self) -> Trainer:
        """The trainer that the config builds, with the data that the run began with.

        Damaged data is warned about and passed over.
        """
        use_contents(self.folder, self._built.input, lambda text: warnings.warn(text, stacklevel=3))
        return self._built

    @functools.cached_property
    def _built(self) -> Trainer:
        """The same trainer before it opens any data, for what needs none: the model, its text."""
        return self.config.build()

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the entries of metrics.jsonl, without damaged lines."""
        return read_metrics(self.folder.metrics)

    def losses(self) -> list[tuple[int, float]]:
        """Returns the recorded (step, loss) points, including those before it was resumed."""
        return [(e["step"], e["loss"]) for e in self.metrics() if e.get("loss") is not None]

    def goodput(self) -> Goodput:
        """Returns where the seconds of the run went, over all its lives."""
        from dovetail.runtime.goodput import goodput

        return goodput(self.path)

    # The model

    @functools.cached_property
    def parameters(self) -> RunParameters:
        """The stored parameters, to be read a few at a time."""
        return RunParameters(self.folder, self.config)

    @functools.cached_property
    @explained_failures()
    def loaded(self) -> LoadedParameters:
        """All parameters on the devices of this machine, loaded at first use."""
        use_compilation_cache()
        return self.parameters.load(self._built.model, self._built.rules)

    @property
    def step(self) -> int:
        """The training step of the newest parameters; 0 for imported ones."""
        return self.loaded.step

    @property
    def params(self) -> dict[str, jax.Array]:
        """The newest parameters by path; averaged ones (EMA) if the run has them."""
        return self.loaded.params

    @functools.cached_property
    def model(self) -> BoundModule:
        """The model with its parameters: `run.model(tokens)` returns logits."""
        loaded = self.loaded
        # A text is one row, which need not divide over the devices.
        context = functools.partial(use_placement, loaded.placement.replicated())
        return BoundModule(self._built.model, loaded.params, loaded.variables, context)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from the files of the run."""
        source = self._built.input
        if not has_tokenizer(source):
            raise RunError(
                f"{self.path}: the input of this run, {type(source).__name__}, has no tokenizer, "
                "so it takes and gives no text."
            )
        if check_tokenizer(self.folder, self.about):
            # An input of its own, because preparing a changed corpus loads another tokenizer.
            own = cast("HasTokenizer", self.config.input.build())
            return own.load_tokenizer(self.folder.tokenizer)
        # A run of before: its tokenizer is in the prepared data alone.
        self._check_data("the tokenizer may differ and the text would be nonsense")
        return source.tokenizer

    def _check_data(self, consequence: str) -> None:
        """Raises a RunError if the data of the run is gone and the corpus gives other data."""
        source, before = self.trainer.input, self.about.get("data")
        if not isinstance(source, HasPreparedData) or before is None:
            return
        if (now := source.prepare().folder.name) != before:
            raise RunError(
                f"{self.path}: the corpus has changed since this run was trained (its data was "
                f"{before}, now it is {now}), so {consequence}. Restore the corpus, or train again."
            )

    # Generation

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Continues a prompt: text, or token ids. See `GenerateOptions`."""
        return self.generate_batch([prompt], **options)[0]

    @explained_failures()
    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> list[Generation]:
        """Continues several prompts at once."""
        generator, arguments = self._generation(prompts, options)
        return generator.generate(prompts, **arguments)

    def stream(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> Iterator[GenerationChunk]:
        """Continues a prompt and yields chunks as they are decoded, as `generate` would."""
        generator, arguments = self._generation([prompt], options)
        return self._chunks(generator.stream([prompt], **arguments))

    def _chunks(self, chunks: Iterator[GenerationChunk]) -> Iterator[GenerationChunk]:
        with explained_failures():
            yield from chunks

    def _generation(
        self, prompts: Sequence[Prompt], options: GenerateOptions
    ) -> tuple[Generator, dict[str, Any]]:
        """Returns a generator whose KV cache is long enough, and the arguments for it."""
        known = GenerateOptions.__annotations__
        for name in options.keys() - known.keys():
            raise ConfigError(f"generate: unknown option {name!r}. {did_you_mean(name, known)}")
        max_new_tokens: Any = options.get("max_new_tokens", 128)
        temperature = options.get("temperature", 0.8)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens: expected 1 or more, got {max_new_tokens!r}.")
        _check_inputs("generate", options.get("inputs"))
        longest = max((np.size(self._tokens(prompt)) for prompt in prompts), default=0)
        length = -(-(longest + max_new_tokens) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        sampler: ConfigOf[Sampler] = Greedy.Config()
        if temperature:
            top_k, top_p = options.get("top_k"), options.get("top_p")
            sampler = Sampling.Config(temperature=temperature, top_k=top_k, top_p=top_p)
        return self._generator(length), {
            "max_new_tokens": max_new_tokens,
            "sampler": sampler,
            "stop_tokens": self.stop_tokens,
            "stop_strings": options.get("stop", ()),
            "seed": options.get("seed", 0),
            "inputs": options.get("inputs"),
            "axis_positions": options.get("axis_positions"),
        }

    @functools.cached_property
    def stop_tokens(self) -> list[int]:
        """The ids that end generation: those of the tokenizer, and of the imported model."""
        own = stop_tokens_of(self.tokenizer) if has_tokenizer(self._built.input) else []
        return list(dict.fromkeys([*own, *end_tokens_of(self.source_folder)]))

    def _new_generator(self, length: int) -> Generator:
        loaded, tokenizer = self.loaded, None
        if has_tokenizer(self._built.input):
            tokenizer = self.tokenizer
        return Generator(
            cast("ConfigOf[Any]", self._built.model.config),
            loaded.params,
            length=length,
            variables=loaded.variables,
            tokenizer=tokenizer,
            placement=loaded.placement,
        )

    def _tokens(self, text: Prompt) -> Any:
        return self.tokenizer.encode(text) if isinstance(text, str) else np.asarray(text)

    def _checked_tokens(self, where: str, text: Prompt) -> Any:
        """Returns token ids; those that the model does not know would give NaN silently."""
        tokens = self._tokens(text)
        if tokens.size:
            check_token_ids(tokens, where, getattr(self._built.model, "vocab_size", 2**31))
        return tokens

    # Evaluation

    @explained_failures()
    def logits(self, text: Prompt, inputs: Mapping[str, Any] | None = None) -> jax.Array:
        """Returns the logits [S, V] of the token after each token of a text (or of token ids).

        Args:
            text: a text, or token ids [S].
            inputs: named inputs of the layers' context, arrays with one row, such as the source of
                an encoder.
        """
        if not hasattr(self._built.model, "vocab_size"):
            raise ConfigError(
                f"logits: the model of {self.path}, {type(self._built.model).__name__}, has no "
                "vocabulary. Call run.model with what it takes."
            )
        _check_inputs("logits", inputs)
        tokens = self._checked_tokens("logits", text)
        if tokens.ndim != 1 or not tokens.size:
            got = f"an array of shape {tokens.shape}" if tokens.size else "nothing"
            raise ConfigError(
                f"logits: expected a text or token ids [S] of at least one token, got {got}. For "
                "an empty text, pass the end-of-text token: [run.tokenizer.end_of_text]."
            )
        named = [] if inputs is None else [jax.tree.map(jnp.asarray, dict(inputs))]
        logits_BSV: jax.Array = self.model(jnp.asarray(tokens)[None], *named)
        return logits_BSV[0]

    @explained_failures()
    def loss(self, data: Any, params: dict[str, Any] | None = None) -> jax.Array:
        """Returns the loss of the model; it can be differentiated by `params`.

        jax.grad(lambda params: run.loss("def main():", params))(run.params)

        Args:
            data: a text, token ids of one row [S] or of several [B, S], or a batch of the input.
            params: other parameters than those of the run.
        """
        batch = data
        if isinstance(data, str | Sequence | np.ndarray | jax.Array):
            tokens = self._checked_tokens("loss", cast("Prompt", data))
            batch = token_batch(np.atleast_2d(tokens))
        loaded = self.loaded
        params = loaded.params if params is None else params
        with use_placement(loaded.placement.replicated()):
            return _loss(self._built.model, params, loaded.variables, batch)

    @explained_failures()
    def evaluate(self, tasks: str | Sequence[str] | None = None) -> dict[str, float | int | str]:
        """Runs evaluators and returns their metrics, by evaluator and name.

        Args:
            tasks: names of evaluators of the experiment, such as "held_out", and of registered
                tasks, such as "arithmetic"; None runs all evaluators of the experiment.
        """
        chosen = self.evaluators(tasks)
        if chosen.keys() & self._built.evaluators.keys():
            try:
                self._check_data("the metrics would be those of other data")
            except RunError:
                raise
            except ConfigError:  # the corpus is gone; evaluators that need data raise the same
                pass
        loaded, placement = self.loaded, self._batch_placement()
        evaluation = Evaluation(
            loaded.step,
            self._built.model,
            loaded.params,
            loaded.variables,
            self._built.input,
            placement,
            self.path,
            lambda: self.tokenizer,
        )
        metrics: dict[str, float | int | str] = {}
        for name, evaluator in chosen.items():
            with use_placement(placement):
                result = evaluator.evaluate(evaluation)
            metrics |= {f"{name}/{key}": value for key, value in result.items()}
        return metrics

    def _batch_placement(self) -> Placement:
        """Returns the placement of batches: sharded, or replicated if they do not divide."""
        placement = self.loaded.placement
        try:
            for leaf in jax.tree.leaves(self._built.input.spec()):
                placement.sharding(leaf.axes, leaf.shape)
        except ConfigError:  # the run was trained on fewer devices
            return placement.replicated()
        return placement

    def evaluators(self, tasks: str | Sequence[str] | None = None) -> dict[str, Evaluator]:
        """Returns the evaluators that `evaluate` runs; none at all is an error."""
        own = self._built.evaluators
        if tasks is None and not own:
            raise ConfigError(
                f"{self.path}: this run has no evaluators. Train it with one, such as "
                "evaluators.held_out=HeldOutLoss; a run may be continued with other evaluators. "
                f"Or name a task: {', '.join(registered_tasks())}."
            )
        if tasks is None:
            return own
        names: Any = [tasks] if isinstance(tasks, str) else tasks
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"evaluate: expected names of evaluators, got {tasks!r}.")
        return {name: self._evaluator(name) for name in names}

    def _evaluator(self, name: str) -> Evaluator:
        """Returns an evaluator of the experiment, or of a registered task."""
        own, known = self._built.evaluators, registered_tasks()
        if name not in own and name not in known:
            raise ConfigError(
                f"evaluate: {self.path} has no evaluator {name!r}, and there is no such task. "
                + did_you_mean(name, [*own, *known])
            )
        return own[name] if name in own else known[name]().build()

    # Export

    @explained_failures()
    def export_hf(
        self,
        target: str | Path,
        *,
        shard_bytes: int | None = None,
        dtype: str | None = None,
        family: str | None = None,
        progress: bool = True,
    ) -> ExportReport:
        """Exports the model to a new folder that `transformers` loads; adapters are merged.

        Args:
            target: the new folder; it appears when it is complete.
            shard_bytes: the largest size of a file.
            dtype: the dtype to write; None keeps the stored dtypes.
            family: the family whose format to write; None takes one that expresses the model
                exactly, the imported one first.
            progress: whether to show a progress bar.
        """
        options: dict[str, Any] = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
        options |= {"dtype": dtype, "family": family, "progress": progress}
        return self._exported(lambda source: export_hf(source, Path(target), **options))

    @explained_failures()
    def export_adapter(
        self, target: str | Path, *, dtype: str | None = None, family: str | None = None
    ) -> ExportReport:
        """Exports only the LoRA adapters, as a folder that `peft` loads onto the base model."""
        return self._exported(
            lambda source: export_adapter(source, Path(target), dtype=dtype, family=family)
        )

    def _exported(self, export: Callable[[ModelSource], ExportReport]) -> ExportReport:
        """Exports the newest intact checkpoint; begins again if one proves to be damaged."""
        damaged: set[int] = set()
        while True:
            try:
                return export(self.model_source())
            except DamagedStepError as error:  # the checkpointer passes over it from now on
                if error.step in damaged:  # a checkpointer of one's own may not
                    raise
                damaged.add(error.step)

    def model_source(self) -> ModelSource:
        """Returns what an export reads of this run.

        Its weights raise a `DamagedStepError` if the checkpoint proves to be damaged.
        """
        model = self._built.model
        has_own = has_tokenizer(self._built.input) and not self._was_imported_without_tokenizer()
        return ModelSource(
            name=str(self.path),
            model=model,
            weights=self.parameters.weights(model),
            trained=self._trained_paths(),
            tokenizer=self.tokenizer if has_own else None,
            is_imported="imported" in self.about or self.source_folder is not None,
            source_folder=self.source_folder,
            base=self.base(),
        )

    def _was_imported_without_tokenizer(self) -> bool:
        """Says whether the imported model had no tokenizer.json, which is no damage."""
        recorded = "tokenizer" in self.about or self.folder.tokenizer.is_dir()
        tokenizer = getattr(self.config.input, "tokenizer", None)
        return (
            "imported" in self.about and not recorded and not getattr(tokenizer, "digest", "")
        )  # earlier imports recorded the digest in the config alone

    def _trained_paths(self) -> frozenset[str]:
        """Returns the parameters that this run has trained."""
        learner, model = self._built.learner, self._built.model
        if isinstance(learner, KnowsTrainedParameters):
            return learner.trained_paths(model)
        return frozenset(parameter_specs(model))

    @functools.cached_property
    def source_folder(self) -> Path | None:
        """The folder with the imported config.json: of the run, or of one that it started from.

        A run has a copy of it. A run of an earlier version has none, so its parent's is used.
        """
        if "base" in self.about and not self.folder.source.is_dir():
            return None
        run: Run | None = self
        for _ in range(_MAX_ANCESTORS):
            if run is None or run.folder.source.is_dir():
                break
            run = run.parent()
        return run.folder.source if run is not None and run.folder.source.is_dir() else None

    def parent(self) -> Run | None:
        """Returns the run that this one was initialized from, if that is still there."""
        path = getattr(self.config.initialization, "run", None)
        if not isinstance(path, str) or not (Path(path) / "config.txt").is_file():
            return None
        return Run(path)

    def base(self) -> dict[str, Any] | None:
        """Returns where the model it was initialized from came from; None if from scratch."""
        if not isinstance(getattr(self.config.initialization, "run", None), str):
            return None
        if "base" in self.about:
            return dict(self.about["base"])
        parent = self.parent()
        return {} if parent is None else dict(parent.about.get("imported", {}))

    def read_arrays(self, like: ArraySpecs) -> tuple[int, dict[str, jax.Array]] | None:
        """Returns (step, arrays) of those parameters that the run has; None if it has none yet."""
        return self.parameters.read(like)


def load_all_components() -> None:
    """Imports every subpackage whose components config text may name."""
    for subpackage in _COMPONENTS:
        importlib.import_module(f"dovetail.{subpackage}")


def _check_inputs(method: str, inputs: Any) -> None:
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ConfigError(f"{method}: inputs: expected arrays by name, got {inputs!r}.")


@functools.partial(jax.jit, static_argnums=0)
def _loss(model: Any, params: Any, variables: Any, batch: Any) -> jax.Array:
    """Returns the main loss of a batch (see `main_loss`)."""
    _, outputs = functional(model, params, batch, variables=variables, losses="return")
    value: jax.Array = outputs.losses[main_loss(list(outputs.losses))].value()
    return value
