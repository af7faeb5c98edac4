"""SECURITY.md: each sentence is a promise that a test holds, or it is said here why there is nothing to test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

READERS = "cli/test_hostile.py::test_only_verify_runs_code_of_the_tree"
#: The start of each sentence or row, and its tests. None: it says what to do, and promises nothing.
PROMISES: dict[str, tuple[str, ...] | None] = {
    "Each sentence of the next three sections is a promise.": (
        "docs/test_security.py::test_every_sentence_has_a_test",
    ),
    "`tests/docs/test_security.py` names the test": ("docs/test_security.py::test_every_test_is_there",),
    # -- which commands run a tree's code
    "| `plan`, `inspect`, `pr`": (
        READERS,
        "cli/test_hostile.py::test_the_watch_sees_what_is_executed",
        "watch/test_recording.py::test_without_a_run_there_is_no_draft",
    ),
    "| `new` with a folder, or": (
        READERS,
        "cli/test_new_proof.py::test_looking_runs_nothing",
        "cli/test_new_proof.py::test_the_code_of_a_folder_runs_only_when_it_is_asked_for",
    ),
    "| `new --vllm RELEASE`": (
        "cli/test_new_proof.py::test_a_release_runs_unasked_and_a_changed_copy_of_it_does_not",
        "cli/test_new_proof.py::test_the_installed_package_runs_unasked",
        "protocol/test_protocol_targets.py::test_a_planted_release_is_fetched_again",
        "protocol/test_protocol_targets.py::test_wrong_digest",
    ),
    "| `verify`, `new --verify`, `init`, `init --show-recording`": (
        "watch/test_recording.py::test_it_drafts_from_the_run",
        "cli/test_proof_of_what_ran.py::test_a_proof_is_of_what_ran",
        "cli/test_new_proof.py::test_an_interrupted_proof_leaves_no_file_and_no_process",
    ),
    "| `fix` | imports and runs it": (
        "cli/test_fix.py::test_it_writes_the_repair_and_nothing_else",
        "cli/test_fix.py::test_a_release_is_run_and_its_working_copy_is_written",
    ),
    "| `bench`, `profile`": ("cli/test_bench.py::test_code_of_no_folder_cannot_be_trusted",),
    "Look at a stranger's tree": None,
    "Run `verify`, `fix`, `new --verify` and `init` only": None,
    "`--recipe FILE.py` also runs that file": (
        "numeric/test_recipe_files.py::test_a_recipe_may_be_a_file",
        "numeric/test_checkpoint.py::test_a_processor_in_code_of_the_checkpoint",
    ),
    "A working copy (`./vllm-0.22.0`) may be": None,
    "So `new` runs the release itself in its place": (
        "cli/test_new_proof.py::test_a_release_runs_unasked_and_a_changed_copy_of_it_does_not",
    ),
    # -- what the tool protects against
    "The tool calls git for reading only.": (
        "publish/test_publish_dirty.py::test_one_module_runs_git",
        "publish/test_publish_dirty.py::test_asking_does_not_write",
    ),
    "Hooks, filters, aliases": (
        "cli/test_hostile.py::test_no_command_runs_what_a_repository_names",
        "cli/test_hostile.py::test_nothing_is_fetched_for_a_partial_clone",
        "cli/test_hostile.py::test_the_traps_work",
    ),
    "No setting of a repository hides uncommitted work": (
        "publish/test_publish_dirty.py::test_a_checkout_whose_settings_name_another_work_tree",
    ),
    "Besides git, the reading commands start only ruff": (READERS,),
    "`doctor` starts the driver's `nvidia-smi`": ("plugin/test_doctor.py::test_gpus_are_what_the_driver_says",),
    "A descriptor is data.": (
        "fuzz/test_fuzz.py::test_no_input_breaks_it",
        "cli/test_hostile_calls.py::test_what_verify_says_of_the_configuration_changes_nothing",
    ),
    "Its calls carry the data of a batch": (
        "cli/test_hostile_calls.py::test_what_no_class_of_the_tree_defines_is_refused_with_the_tree",
    ),
    "They reach nothing of a configuration": (
        "cli/test_hostile_calls.py::test_a_hostile_call_under_any_key_is_refused_and_changes_nothing",
        "cli/test_hostile_calls.py::test_the_methods_that_no_call_reaches_are_those_of_the_installed_packages",
    ),
    "A port imports only what the model or its processor uses": (
        "plan/test_plan_names.py::test_ports_import_only_what_the_model_uses",
    ),
    "`validate` refuses by shape": (
        "cli/test_hostile_calls.py::test_a_hostile_call_under_any_key_is_refused_and_changes_nothing",
        "cli/test_hostile_calls.py::test_what_no_class_of_the_tree_defines_is_refused_with_the_tree",
        "plugin/test_adapter_calls.py::test_hostile_calls_of_an_adapter",
    ),
    "Its texts have no characters that nobody sees": (
        "descriptor/test_texts.py::test_what_nobody_sees_is_refused_in_every_text",
        "descriptor/test_texts.py::test_a_reason_tells_no_tool_anything",
        "descriptor/test_texts.py::test_every_reason_is_a_remark",
    ),
    "Each formula has a bounded length": ("descriptor/test_descriptor_mistakes.py::test_a_mistake_is_reported",),
    "Where a descriptor says how to make the model": (
        "cli/test_new_proof.py::test_a_descriptor_cannot_switch_its_proof_off",
    ),
    "`--static` writes without the proof": ("cli/test_new_proof.py::test_a_descriptor_cannot_switch_its_proof_off",),
    "Its expressions are a small language": ("render/test_environment.py::test_identifiers_are_checked",),
    "A pipe in a tree ends in an error": (
        "cli/test_hostile.py::test_pipe_in_a_tree",
        "cli/test_hostile.py::test_pipe_among_our_records",
        "publish/test_publish_dirty.py::test_a_repository_that_git_would_wait_for",
        "cli/test_hostile.py::test_the_draft_of_an_output_follows_no_link",
        "verify/test_style.py::test_settings_that_ruff_would_wait_for_are_refused_before_it_starts",
    ),
    "Ruff reads no variable of yours": (
        "verify/test_style.py::test_no_setting_reads_the_environment_of_the_caller",
        "verify/test_style.py::test_settings_that_ruff_would_wait_for_are_refused_before_it_starts",
    ),
    "The tool fetches a release only when you name it": (
        READERS,
        "protocol/test_protocol_targets.py::test_release_is_fetched_once",
        "protocol/test_protocol_targets.py::test_wrong_digest",
    ),
    "It refuses a download without one": (
        "protocol/test_protocol_targets.py::test_the_network_needs_a_digest",
        "protocol/test_protocol_targets.py::test_digest_of_a_weak_kind_is_not_trusted",
        "protocol/test_protocol_targets.py::test_an_index_with_another_tree_of_a_known_release",
    ),
    "The tool refuses a cached tree that has changed": (
        "protocol/test_protocol_targets.py::test_a_cached_release_that_was_changed",
        "protocol/test_protocol_targets.py::test_a_planted_release_is_fetched_again",
        "protocol/test_protocol_targets.py::test_an_unknown_release_without_a_record_is_fetched_again",
    ),
    "It refuses a cache folder that others can write": (
        "protocol/test_protocol_targets.py::test_a_cache_that_others_can_write",
        "protocol/test_protocol_targets.py::test_the_folder_above_a_cache",
        "cli/test_proof_of_what_ran.py::test_a_cache_of_bytecode_that_others_can_write",
        "verify/test_proofs.py::test_a_proof_that_others_could_write_is_none",
    ),
    "`pr` quotes a proof only if": (
        "cli/test_proof_of_what_ran.py::test_a_proof_is_of_what_ran",
        "verify/test_proofs.py::test_another_tree_has_another_name",
        "verify/test_proofs.py::test_a_change_behind_a_link_is_another_tree",
        "verify/test_proofs.py::test_what_a_result_depends_on",
        "verify/test_proofs.py::test_a_changed_folder_of_the_user_is_another_basis",
        "verify/test_proofs.py::test_values_of_a_user_are_part_of_a_proof",
    ),
    "The lab reads no bytecode of a tree": (
        "cli/test_proof_of_what_ran.py::test_bytecode_is_that_of_the_source",
        "cli/test_proof_of_what_ran.py::test_bytecode_beside_the_source_is_not_run",
        "cli/test_proof_of_what_ran.py::test_bytecode_without_a_source_is_refused",
    ),
    "No output is a command": (
        "cli/test_output_is_no_command.py::test_a_tree_of_that_name",
        "cli/test_output_is_no_command.py::test_a_folder_of_that_name",
        "cli/test_output_is_no_command.py::test_the_action",
        "cli/test_output_is_no_command.py::test_one_place_writes",
    ),
    "Patches and other documents for programs": (
        "cli/test_output_is_no_command.py::test_a_patch_is_exact_for_programs_and_harmless_in_a_log",
        "cli/test_output_is_no_command.py::test_documents_for_programs_keep_every_character",
    ),
    "`new` writes all files or none.": (
        "publish/test_publish_failures.py::test_one_failing_call",
        "publish/test_publish_kill.py::test_sigkill_at_every_call",
    ),
    "After a kill, `revert` repairs": ("publish/test_publish_kill.py::test_sigkill_at_every_call",),
    # -- what the plugin does
    "`pip install` puts the plugin into every process": ("plugin/test_operators.py::test_pip_installs_and_uninstalls",),
    "It waits for a runner that is about to make encoder graphs": (
        "harm/test_harm.py::test_no_situation_is_worse_with_the_plugin",
    ),
    "It opens no network connection.": ("plugin/test_modes.py::test_every_mode_changes_what_it_says",),
    "`VITCG_DISABLE=1` switches it off": ("plugin/test_modes.py::test_every_mode_changes_what_it_says",),
}


def sentences() -> list[str]:
    """Of the page up to the last section; a row of the table is one."""
    found: list[str] = []
    page = PAGE.partition("## Report a vulnerability")[0]
    for block in re.split(r"\n\n+", page):
        if block.startswith("#"):
            continue
        if block.startswith("|"):
            found += block.splitlines()[2:]
            continue
        for item in re.split(r"^\* \*\*[^*]+\*\* ", block, flags=re.MULTILINE):
            text = " ".join(item.split())
            found += [sentence for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`*])", text) if sentence]
    return found


def test_every_sentence_has_a_test() -> None:
    starts = {sentence: [start for start in PROMISES if sentence.startswith(start)] for sentence in sentences()}
    assert {sentence: found for sentence, found in starts.items() if len(found) != 1} == {}
    assert {*PROMISES} - {start for found in starts.values() for start in found} == set(), "of sentences that are gone"


@pytest.mark.parametrize("test", sorted({test for tests in PROMISES.values() for test in tests or ()}))
def test_every_test_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    module = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    assert name in functions
    marks = [ast.unparse(mark) for mark in functions[name].decorator_list]
    assert not any(mark.startswith(("pytest.mark.skip(", "pytest.mark.xfail")) for mark in marks)


def test_a_new_sentence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "test_security.PAGE", PAGE.replace("**Names and texts.** ", "**Names and texts.** It is safe. ")
    )
    with pytest.raises(AssertionError, match="It is safe"):
        test_every_sentence_has_a_test()
