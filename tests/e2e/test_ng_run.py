"""`ng_run`: one process per server, and none of them remains afterwards."""

import asyncio
import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.server_utils import ServerClient
from tests.support.commands import (
    BIN,
    NgRun,
    children_of,
    descendants_of,
    free_port,
    is_running,
    run_command,
    wait_until,
)
from tests.support.components import SERVER, write_component

SECRET = "sk-nobody-may-see-this"
CHATTY = """
import os, resource, subprocess, sys, time
from fastapi import Request
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import SESSION_ID_KEY, get_global_config_dict, is_nemo_gym_fastapi_entrypoint


class ChattyServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/who")(self.who)
        app.post("/write")(self.write)
        app.post("/count")(self.count)
        self._child = subprocess.Popen(["sleep", "1000"])
        if os.fork() == 0:  # as multiprocessing does: it holds what its parent has open, the port too
            time.sleep(1000)
            os._exit(0)
        return app

    async def who(self) -> dict:
        return {
            "pid": os.getpid(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "exposed": is_exposed,
            "key": get_global_config_dict()["policy_api_key"],
            "argv": sys.argv,
            "environ": dict(os.environ),
        }

    async def count(self, request: Request) -> dict:
        request.session["count"] = request.session.get("count", 0) + 1
        return {"count": request.session["count"], "pid": os.getpid()}

    async def write(self, body: dict) -> dict:
        sys.stdout.buffer.write(bytes.fromhex(body["hex"]) * body["times"])
        sys.stdout.buffer.flush()
        return {}


is_exposed = False
if __name__ == "__main__":
    ChattyServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = ChattyServer.run_webserver()
    is_exposed = True
"""
TWO_WORKERS = {"chatty.resources_servers.chatty.num_workers": 2, "policy_api_key": SECRET}
CHATTY_CONFIG = "resources_servers/chatty/configs/chatty.yaml"
PLAIN_CONFIG = "resources_servers/plain/configs/plain.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folder with its own environments."""
    folder = tmp_path_factory.mktemp("ng_run")
    write_component(folder, "chatty", CHATTY)
    write_component(folder, "plain")
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[NgRun]:
    """One `ng_run` for the tests that do not change it. Its soft limit of open files is low."""
    with NgRun([CHATTY_CONFIG, PLAIN_CONFIG], TWO_WORKERS, folder, soft_file_limit=200) as run:
        yield run


WRITER = "chatty[0]"
"""The worker that serves the first call of a client."""


def write(run: NgRun, data: bytes, times: int = 1) -> None:
    """Make the server write to its standard output."""
    run.post("chatty", "/write", {"hex": data.hex(), "times": times})


def count_in_parallel(run: NgRun, sessions: int) -> list[dict[str, Any]]:
    async def session(client: ServerClient) -> dict[str, Any]:
        first = await client.post("chatty", "/count", json={})
        pids = [(await first.json())["pid"]]
        for _ in range(3):
            last = await client.post("chatty", "/count", json={}, cookies=first.cookies)
            pids.append((await last.json())["pid"])
        return {"count": (await last.json())["count"], "pids": pids}

    async def all_sessions() -> list[dict[str, Any]]:
        client = ServerClient.load_from_global_config(run.head)
        return list(await asyncio.gather(*(session(client) for _ in range(sessions))))

    return asyncio.run(all_sessions())


def test_table_and_status_command_show_every_server(running: NgRun, folder: Path) -> None:
    status = run_command("ng_status", f"+head_server.port={running.head.port}", cwd=folder)
    assert status.returncode == 0, status.stderr
    table = status.stdout.partition("\n")[2]
    assert table in running.output  # the table of ng_run matches the status
    rows = [line.split() for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["chatty[0]", "chatty[1]", "plain"]
    assert all(row[1] == "resources_servers" and row[3] == "ready" for row in rows)
    assert len({row[2] for row in rows}) == 3 and all(row[2].startswith("http://127.0.0.1:") for row in rows)
    assert f"http://127.0.0.1:{running.head.port}" in status.stdout.splitlines()[0]


def test_status_as_json_contains_the_list_of_the_head_server(running: NgRun, folder: Path) -> None:
    port = f"+head_server.port={running.head.port}"
    status = run_command("ng_status", port, "+json_output=true", cwd=folder)
    shown = json.loads(status.stdout)
    assert shown == {"servers": json.loads(running.fetch("/server_instances")), "collections": []}


def test_status_names_the_processes_that_serve_requests(running: NgRun) -> None:
    listed = {entry["pid"] for entry in json.loads(running.fetch("/server_instances"))}
    assert listed == set(children_of(running.process.pid))
    assert running.post("chatty", "/who")["pid"] in listed


def test_head_server_serves_the_configuration_without_its_secrets(running: NgRun) -> None:
    values = yaml.safe_load(json.loads(running.fetch("/global_config_dict_yaml")))
    assert values["policy_api_key"] == "****"
    assert len(values["chatty"]["resources_servers"]["chatty"]["worker_ports"]) == 2
    pages = [running.fetch(path) for path in ("/", "/global_config_dict_yaml", "/server_instances")]
    assert all(SECRET.encode() not in page for page in pages)


def test_servers_get_the_secrets_but_not_by_argument_or_variable(running: NgRun) -> None:
    server = running.post("chatty", "/who")
    assert server["key"] == SECRET
    assert SECRET not in json.dumps([server["argv"], server["environ"]])


def test_lines_of_a_server_are_prefixed_with_its_name_and_have_no_secrets(running: NgRun) -> None:
    write(running, f"one\ntwo {SECRET} three\nhttp://me:pass-word@host/x\n\nfour\n".encode())
    wanted = ["one", "two **** three", "http://****@host/x", "", "four"]
    assert wait_until(lambda: running.lines_of(WRITER)[-5:] == wanted), running.output
    assert SECRET not in running.output and "pass-word" not in running.output


def test_very_long_line_is_shown_in_full_without_its_secrets(running: NgRun) -> None:
    before = len(running.lines_of(WRITER))
    write(running, f"{SECRET}.".encode(), times=40_000)
    write(running, b"THE-END\n")
    assert wait_until(lambda: "THE-END" in running.output)
    assert "".join(running.lines_of(WRITER)[before:]) == "****." * 40_000 + "THE-END"


def test_binary_garbage_does_not_break_the_log(running: NgRun) -> None:
    write(running, bytes(range(256)) * 40 + b"\nafter the garbage\n")
    assert wait_until(lambda: running.lines_of(WRITER)[-1:] == ["after the garbage"])
    assert running.process.poll() is None


def test_line_written_in_parts_is_shown_as_one(running: NgRun) -> None:
    for part in (b"half a line, ", b"now whole\n"):
        write(running, part)
    assert wait_until(lambda: running.lines_of(WRITER)[-1:] == ["half a line, now whole"])


def test_servers_may_open_as_many_files_as_the_hard_limit_allows(running: NgRun) -> None:
    assert running.post("chatty", "/who")["files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_workers_use_the_app_that_the_module_exposes(running: NgRun) -> None:
    assert running.post("chatty", "/who")["exposed"] is True


def test_sessions_stay_with_their_worker_and_both_workers_get_some(running: NgRun) -> None:
    sessions = count_in_parallel(running, 20)
    assert [session["count"] for session in sessions] == [4] * 20
    assert all(len(set(session["pids"])) == 1 for session in sessions)
    assert len({session["pids"][0] for session in sessions}) == 2


def test_second_ng_run_on_the_same_head_port_names_the_port_and_what_to_do(
    running: NgRun, folder: Path
) -> None:
    port = f"+head_server.port={running.head.port}"
    second = run_command("ng_run", f"+config_paths=[{PLAIN_CONFIG}]", port, cwd=folder)
    assert second.returncode == 2
    assert f"127.0.0.1:{running.head.port}" in second.stderr and "+head_server.port=" in second.stderr
    assert "Traceback" not in second.stderr
    assert running.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_every_process_with_exit_code_0(folder: Path, number: int) -> None:
    with NgRun([CHATTY_CONFIG], {"policy_api_key": SECRET}, folder) as run:
        processes = descendants_of(run.process.pid)
        assert len(processes) == 3  # the server and its child process
        assert run.stop(number) == 0
        assert not any(map(is_running, processes))
        assert "Traceback" not in run.output
        assert run.output.endswith("All servers are stopped.\n")


def test_no_process_outlives_an_ng_run_that_was_killed(folder: Path) -> None:
    with NgRun([CHATTY_CONFIG], TWO_WORKERS, folder) as run:
        processes = descendants_of(run.process.pid)
        assert len(processes) == 6
        run.stop(signal.SIGKILL)
        assert wait_until(lambda: not any(map(is_running, processes)))


def test_ctrl_c_while_servers_start_stops_them(folder: Path) -> None:
    config = write_component(folder, "slow_start", "import time\ntime.sleep(1000)\n")
    with NgRun([config, PLAIN_CONFIG], {}, folder, wait=False) as run:
        assert wait_until(lambda: len(children_of(run.process.pid)) == 2)
        processes = children_of(run.process.pid)
        assert run.stop(signal.SIGINT) == 0
        assert not any(map(is_running, processes))
        assert "Traceback" not in run.output


def test_dead_server_ends_the_run_with_its_signal_and_last_lines(folder: Path) -> None:
    with NgRun([CHATTY_CONFIG, PLAIN_CONFIG], {"policy_api_key": SECRET}, folder) as run:
        processes = descendants_of(run.process.pid)
        write(run, b"\n".join(b"line %d" % number for number in range(100)) + b"\nlast words\n")
        os.kill(run.post("chatty", "/who")["pid"], signal.SIGKILL)
        assert run.wait() == 1
        assert "ServerDiedError: chatty died (signal SIGKILL); its last lines:\n" in run.output
        assert "\n  line 99\n  last words\n" in run.output
        assert "\n  line 0\n" not in run.output.partition("ServerDiedError")[2]
        assert "Traceback" not in run.output
        assert not any(map(is_running, processes))


def test_server_that_dies_is_restarted_up_to_the_limit(folder: Path) -> None:
    settings = {"policy_api_key": SECRET, "restart_policy": "on_failure", "max_restarts": 1}
    with NgRun([CHATTY_CONFIG], settings, folder) as run:
        remains = descendants_of(run.process.pid)
        first, second = asyncio.run(kill_between_two_calls(run))
        assert first in remains and second not in remains
        assert not any(map(is_running, remains))
        os.kill(second, signal.SIGTERM)
        assert run.wait() == 1
        assert "restarting chatty (1 of 1)" in run.output
        assert "ServerDiedError: chatty died (signal SIGTERM)" in run.output


async def kill_between_two_calls(run: NgRun) -> tuple[int, int]:
    """The process ids that one client sees before and after the server is killed."""
    client = ServerClient.load_from_global_config(run.head)
    [(_, port, _)] = run_status(run)
    first = (await (await client.post("chatty", "/who", json={})).json())["pid"]
    os.kill(first, signal.SIGKILL)
    assert await asyncio.to_thread(wait_until, lambda: run_status(run) == [("ready", port, 1)])
    second = (await (await client.post("chatty", "/who", json={})).json())["pid"]
    return first, second


def run_status(run: NgRun) -> list[tuple[str, int, int]]:
    entries = json.loads(run.fetch("/server_instances"))
    return [(entry["status"], entry["port"], entry["restarts"]) for entry in entries]


def test_server_that_dies_during_a_restart_uses_up_its_restarts(folder: Path) -> None:
    fragile = (
        "from pathlib import Path\nimport os\nif Path(__file__).with_name('fragile').exists(): os._exit(7)\n"
    )
    config = write_component(folder, "brittle", fragile + SERVER)
    settings = {"restart_policy": "on_failure", "max_restarts": 2}
    with NgRun([config], settings, folder) as run:
        (folder / "resources_servers/brittle/fragile").touch()
        os.kill(children_of(run.process.pid)[0], signal.SIGKILL)
        assert run.wait() == 1
        assert "restarting brittle (2 of 2)" in run.output
        assert "ServerDiedError: brittle died (exit code 7)" in run.output


def test_failed_start_up_of_a_server_is_reported_with_its_log(folder: Path) -> None:
    lifespan = (
        "from contextlib import asynccontextmanager\n"
        "@asynccontextmanager\n"
        "async def lifespan(app):\n"
        "    raise OSError('no disk')\n"
        "    yield\n"
    )
    setup = "super().setup_webserver()\n        app.router.lifespan_context = lifespan"
    app = SERVER.replace("super().setup_webserver()", setup) + lifespan
    config = write_component(folder, "no_disk", app)
    with NgRun([config], {}, folder, wait=False) as run:
        assert run.wait() == 1
        assert "ServerDiedError: no_disk died (exit code 3); its last lines:" in run.output
        assert "OSError: no disk" in run.output


def test_modules_in_the_working_directory_do_not_shadow_those_of_the_servers(folder: Path) -> None:
    place = folder / "cluttered"
    config = write_component(place, "tidy")
    for name in ("random", "yaml", "uvicorn"):
        (place / f"{name}.py").write_text("raise SystemExit('not me')")
    with NgRun([config], {}, place) as run:
        assert run.post("tidy", "/ask") == {"result": "plain"}


def test_servers_stop_when_the_log_is_not_read_any_more(folder: Path) -> None:
    port = free_port()
    log = "import threading\ndef log():\n    print('tick')\n    threading.Timer(0.1, log).start()\nlog()\n"
    config = write_component(folder, "ticks", log + SERVER)
    process = subprocess.Popen(
        [str(BIN / "ng_run"), f"+config_paths=[{config}]", f"+head_server.port={port}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        for line in process.stdout:
            if "All servers are ready" in line:
                break
        processes = descendants_of(process.pid)
        assert len(processes) == 1
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        assert not any(map(is_running, processes))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


READS_INPUT = """
import os, subprocess, time
from fastapi import FastAPI
from contextlib import asynccontextmanager
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer


class Server(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/cat")(self.cat)
        app.post("/die")(self.die)

        @asynccontextmanager
        async def lifespan(app):
            yield
            time.sleep(4 if self.config.name == "slow" else 0)

        app.router.lifespan_context = lifespan
        return app

    def cat(self) -> dict:
        return {"read": subprocess.run(["cat"], capture_output=True, timeout=30).stdout.decode()}

    async def die(self) -> dict:
        os._exit(7)
"""


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[NgRun]:
    with NgRun([write_component(tmp_path, "quick", READS_INPUT)], {}, cwd=tmp_path) as run:
        yield run


@pytest.fixture
def slow_and_quick(tmp_path: Path) -> Iterator[NgRun]:
    """One server takes 4 s to stop."""
    paths = [write_component(tmp_path, name, READS_INPUT) for name in ("slow", "quick")]
    with NgRun(paths, {}, cwd=tmp_path) as run:
        yield run


def test_program_started_by_an_environment_has_an_empty_standard_input(quick: NgRun) -> None:
    assert quick.post("quick", "/cat") == {"read": ""}


def test_ctrl_c_during_the_stop_after_a_death_still_reports_the_death_and_ends_all(
    slow_and_quick: NgRun,
) -> None:
    slow = slow_and_quick.pid_of("slow")
    client = ServerClient.load_from_global_config(slow_and_quick.head)
    with pytest.raises(Exception, match="no response"):
        asyncio.run(client.post("quick", "/die"))
    quick = slow_and_quick.pid_of("quick")
    assert wait_until(lambda: not is_running(quick))
    assert slow_and_quick.stop(signal.SIGINT) == 1
    assert "quick died (exit code 7)" in slow_and_quick.output
    assert not is_running(slow)


def test_death_at_the_moment_of_ctrl_c_is_still_reported(slow_and_quick: NgRun) -> None:
    quick = slow_and_quick.pid_of("quick")
    slow_and_quick.process.send_signal(signal.SIGSTOP)  # both signals are pending when it continues
    os.kill(quick, signal.SIGKILL)
    assert wait_until(lambda: not is_running(quick))
    slow_and_quick.process.send_signal(signal.SIGINT)
    slow_and_quick.process.send_signal(signal.SIGCONT)
    assert slow_and_quick.wait() == 1
    assert "quick died (signal SIGKILL)" in slow_and_quick.output
