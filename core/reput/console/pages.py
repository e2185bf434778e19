"""The pages about messages, topics and groups, of a store and of brokers alike; and those of the console itself.

Every handler is a plain function: Starlette runs it on a thread, so that a read of the disk keeps no page waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from reput.console.actions import RedriveChoice, parse_place, redrive_work, reset_work
from reput.console.console_context import ConsoleContext
from reput.console.guard import peer_of
from reput.console.live_feed import live_cells
from reput.console.message_life import life_of
from reput.console.message_search import FoundMessages, find_messages, whole
from reput.console.message_view import body_view, message_row
from reput.consume.registry.statistics import TopicRow
from reput.errors import ConfigError, RequestRefused
from reput.remoting.response_code import ResponseCode
from reput.watched.rates import Rates

__all__ = ["Pages"]

MESSAGES_MAX = 32


class Pages:
    """The handlers of one console."""

    def __init__(self, console: ConsoleContext) -> None:
        self.console = console

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self.overview),
            Route("/topics", self.topics),
            Route("/topics/{topic:path}", self.topic),
            Route("/groups", self.groups),
            Route("/groups/{group}", self.group),
            Route("/groups/{group}/reset", self.reset, methods=["GET", "POST"]),
            Route("/groups/{group}/redrive", self.redrive, methods=["GET", "POST"]),
            Route("/messages", self.messages),
            Route("/message", self.message),
            Route("/jobs/{number}", self.job),
            Route("/audit", self.audit),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
        ]

    # The whole.

    def overview(self, request: Request) -> Response:
        """Show rates, lags, and what needs attention."""
        overview = self.console.target.read()
        rates = self.console.feed.rates_at(overview.at)
        return self.console.page(
            request,
            "overview.html",
            "Overview",
            overview=overview,
            status=None if overview.figures is None else overview.figures.status,
            topics=topics_by_count(overview.counts.put if overview.counts else {}),
            lags=sorted(overview.lags, key=lambda row: (-row.lag, row.group, row.topic))[:MESSAGES_MAX],
            cells=live_cells(overview, rates),
        )

    # Topics.

    def topics(self, request: Request) -> Response:
        """Show the topics."""
        with self.console.target.administration() as administration:
            found = administration.topic_configs()
        counts = self.console.target.read().counts
        rows = [
            (config, None if counts is None else TopicRow(config.topic_name, counts.put.get(config.topic_name, 0), 0))
            for config in found
        ]
        return self.console.page(request, "topics.html", "Topics", rows=rows)

    def topic(self, request: Request) -> Response:
        """Show the queues of a topic, and which groups read it."""
        topic = request.path_params["topic"]
        with self.console.target.administration() as administration:
            queues = administration.topic_stats(topic)
            progress = administration.progress_of_groups()
        groups = {
            group: sum(row.lag for row in rows if row.topic == topic)
            for group, rows in progress.items()
            if any(row.topic == topic for row in rows)
        }
        return self.console.page(request, "topic.html", f"Topic {topic}", topic=topic, queues=queues, groups=groups)

    # Groups.

    def groups(self, request: Request) -> Response:
        """Show the groups with their lag in each topic."""
        overview = self.console.target.read()
        lags = sorted(overview.lags, key=lambda row: (row.group, row.topic))
        return self.console.page(request, "groups.html", "Groups", lags=lags, cells=live_cells(overview, Rates()))

    def group(self, request: Request) -> Response:
        """Show a group's progress in each queue, and its consumers."""
        group = request.path_params["group"]
        with self.console.target.administration() as administration:
            progress = administration.group_progress(group)
            config = administration.group_config(group)
        return self.console.page(
            request,
            "group.html",
            f"Group {group}",
            group=group,
            progress=progress,
            config=config,
            letters=self.letters(group),
            consumers=self.console.target.consumers(group),
            topics=list(dict.fromkeys(row.topic for row in progress)),
            can_act=self.console.target.broker() is not None,
        )

    def reset(self, request: Request) -> Response:
        """Ask for a confirmation, then reset a group."""
        group = request.path_params["group"]
        given = request.state.form or request.query_params
        topic, text = given.get("topic", ""), given.get("to", "")
        place = parse_place(text)
        client = self.console.target.broker()
        if client is None:
            raise ConfigError(
                f"no broker serves the store: group={group}",
                "Close the program that has it open, then: reput group reset STORE GROUP TOPIC --to PLACE.",
            )
        action = f"reset group={group} topic={topic} to={text}"
        if request.method == "POST":
            return self.console.begin(request, action, reset_work(client, group, topic, place))
        return self.console.page(
            request,
            "confirm.html",
            "Reset the group",
            action=action,
            consequence=(
                f"Group {group} continues at {text} in every queue of topic {topic}. Running consumers are notified. "
                "Messages may be delivered again, or never."
            ),
            fields={"topic": topic, "to": text},
            back=f"/groups/{quote(group)}",
        )

    def letters(self, group: str) -> list[dict[str, object]]:
        """Return the first dead letters of a group that the next redrive puts back."""
        with self.console.target.administration() as administration:
            return [message_row(record) for record in islice(administration.dead_letters(group).read(), MESSAGES_MAX)]

    def redrive(self, request: Request) -> Response:
        """Show which dead letters would be put back, ask for a confirmation, then put them back."""
        group = request.path_params["group"]
        given = {name: value.strip() for name, value in (request.state.form or request.query_params).items()}
        client = self.console.target.broker()
        if client is None:
            raise ConfigError(
                f"no broker serves the store: group={group}",
                "Close the program that has it open, then: reput group redrive STORE GROUP.",
            )
        wanted = RedriveChoice.of(given)
        action = f"redrive group={group} {wanted.text()}"
        if request.method == "POST":
            return self.console.begin(request, action, redrive_work(client, group, wanted))
        chosen = wanted.count_chosen(client, group)
        to = "for this group alone"
        if wanted.to == "topic":
            to = "into the topics that they were sent to, for all groups of those topics"
        again = "begins behind them" if wanted.is_whole() else "may choose them again"
        return self.console.page(
            request,
            "confirm.html",
            "Redrive dead letters",
            action=action,
            consequence=(
                f"{chosen} dead letters of {group} are put back, {to}. They stay among the dead "
                f"letters as well. The next redrive {again}."
            ),
            fields={name: given.get(name, "") for name in RedriveChoice.FIELDS},
            back=f"/groups/{quote(group)}",
        )

    # Messages.

    def messages(self, request: Request) -> Response:
        """Show messages by id, key, text, time or queue position."""
        given = {name: value.strip() for name, value in request.query_params.items()}
        if given.get("id"):
            return RedirectResponse(f"/message?id={quote(given['id'])}", 303)
        found = FoundMessages([], "", [])
        if given.get("topic"):
            with self.console.target.messages() as source:
                found = find_messages(source, given)
        return self.console.page(
            request,
            "messages.html",
            "Messages",
            given=given,
            note=found.note,
            links=found.links,
            rows=[message_row(record) for record in found.records],
        )

    def message(self, request: Request) -> Response:
        """Show one message, and its life."""
        message_id = request.query_params.get("id", "")
        with self.console.target.messages() as source:
            found = source.query(None, message_id, 1)
            if not found:
                raise RequestRefused(
                    ResponseCode.QUERY_NOT_FOUND, f"there is no such message: message_id={message_id!r}"
                )
            record = found[0]
            overview = self.console.target.read()
            status = None if overview.figures is None else overview.figures.status
            with self.console.target.administration() as administration:
                life = life_of(record, status, administration, source)
        return self.console.page(
            request, "message.html", f"Message {message_id}", record=record, body=body_view(record), life=life
        )

    # The console itself.

    def job(self, request: Request) -> Response:
        """Show an action and how far it is."""
        job = self.console.jobs.jobs.get(whole("number", request.path_params["number"]))
        if job is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "this action is not remembered any more")
        return self.console.page(request, "job.html", job.action, job=job)

    def audit(self, request: Request) -> Response:
        """Show the actions and their users."""
        audit = self.console.audit
        return self.console.page(request, "audit.html", "Actions", lines=audit.shown, path=audit.path)

    def login(self, request: Request) -> Response:
        """Show the form to log in, and log in."""
        guard, accounts = self.console.guard, self.console.accounts
        if accounts is None:
            return RedirectResponse("/", 303)
        peer = peer_of(request.scope)
        form = request.state.form
        session = request.state.session
        if session is None:
            # The form needs a token before there is a user.
            token, session = guard.begin(None)
            response = self.console.page(request, "login.html", "Log in", failed="", csrf=session.csrf)
            response.headers.append("set-cookie", guard.set_cookie(request, token))
            return response
        if request.method == "GET":
            return self.console.page(request, "login.html", "Log in", failed="", csrf=session.csrf)
        name = form.get("name", "")
        attempt = accounts.attempt(name, form.get("password", ""), peer)
        if attempt.accepted:
            guard.end(request.cookies)
            token, _ = guard.begin(name)
            self.console.audit.add_login(name, peer, "done")
            to = request.query_params.get("to", "/")
            response = RedirectResponse(to if to.startswith("/") and to[1:2] not in ("/", "\\") else "/", 303)
            response.headers.append("set-cookie", guard.set_cookie(request, token))
            return response
        failed, status = "name or password is wrong", 403
        if attempt.wait_s:
            failed, status = f"too many attempts: try again in {math.ceil(attempt.wait_s)} s", 429
        else:
            self.console.audit.add_refused_login(peer)
        return self.console.page(request, "login.html", "Log in", status, failed=failed, csrf=session.csrf)

    def logout(self, request: Request) -> Response:
        """End the session."""
        self.console.guard.end(request.cookies)
        return RedirectResponse("/login", 303)


def topics_by_count(put: dict[str, int]) -> Sequence[tuple[str, int]]:
    """Return the topics with the most messages."""
    return sorted(put.items(), key=lambda item: (-item[1], item[0]))[:MESSAGES_MAX]
