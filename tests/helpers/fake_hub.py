"""A server on this machine that answers as the Hugging Face Hub does, as far as `datasets` asks about one data set."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0" * 40


@contextmanager
def served(folder, hub_id):
    """Serve a folder as the data set of this id; yield the address, for HF_ENDPOINT."""
    api, files = f"/api/datasets/{hub_id}", f"/datasets/{hub_id}/resolve/"

    def entry(path):
        kind = "directory" if path.is_dir() else "file"
        content = path.read_bytes() if path.is_file() else b""
        oid = hashlib.sha1(content).hexdigest()
        return {"type": kind, "oid": oid, "size": len(content), "path": path.relative_to(folder).as_posix()}

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def answer_json(self, content):
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

        def do_GET(self):
            url = urlsplit(self.path)
            path, query = unquote(url.path), parse_qs(url.query)
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            if path.startswith(files):
                file = folder / path.removeprefix(files).split("/", 1)[1]
                if not file.is_file():
                    return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
                content = file.read_bytes()
                return self.answer(200, content, X_Repo_Commit=COMMIT, ETag=f'"{hashlib.sha1(content).hexdigest()}"')
            if path == api or path.startswith(f"{api}/revision/"):
                names = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
                siblings = [{"rfilename": name} for name in names]
                return self.answer_json(
                    {"id": hub_id, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
                )
            if path.startswith(f"{api}/tree/"):
                inside = folder / "/".join(path.removeprefix(f"{api}/tree/").split("/")[1:])
                if not inside.is_dir():
                    return self.answer(404, X_Error_Code="EntryNotFound")
                is_deep = query.get("recursive", ["false"])[0].lower() in ("true", "1")
                return self.answer_json([entry(each) for each in sorted(inside.glob("**/*" if is_deep else "*"))])
            if path.startswith(f"{api}/paths-info/"):
                named = json.loads(sent)["paths"] if sent.startswith("{") else parse_qs(sent)["paths"]
                return self.answer_json([entry(folder / name) for name in named if (folder / name).exists()])
            return self.answer(404, X_Error_Code="RepoNotFound")

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
