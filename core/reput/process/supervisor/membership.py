"""Membership: dispatchers that join the group, leave it, or continue with a changed plugin or other options."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial

from reput.errors import ConfigError, DispatcherError, ReputError
from reput.process.control.configuration import ConfigurationChange
from reput.process.dispatcher.states import State
from reput.process.logs.exception_text import without_frames
from reput.process.plugin.catalogue import CatalogueEntry, installed_dispatchers, select_dispatchers
from reput.process.plugin.describe import Answer, Question
from reput.process.plugin.dispatcher_order import in_order
from reput.process.supervisor.dispatcher_group import DispatcherGroup
from reput.process.supervisor.member import Member
from reput.process.supervisor.questions import Questions

__all__ = ["Membership"]


class Membership:
    """The members of a group and their descriptions."""

    def __init__(self, group: DispatcherGroup, questions: Questions) -> None:
        self.group = group
        self.questions = questions

    def member(self, name: str) -> Member:
        """Return one dispatcher that can accept a request now.

        Raises:
            DispatcherError: it is not in the group, is joining or leaving, or the group is ending.
        """
        self.refuse_when_ending()
        members = self.group.members
        if name not in members:
            raise DispatcherError(f"dispatcher is not enabled: dispatcher={name} enabled={','.join(members)}")
        if members[name].joining:
            raise DispatcherError(f"dispatcher is being attached: dispatcher={name}", "Try again in a moment.")
        if members[name].leaving:
            raise DispatcherError(f"dispatcher is leaving the group: dispatcher={name}", "Attach it again to keep it.")
        if members[name].is_swapping:
            raise DispatcherError(f"the view is being swapped: dispatcher={name}", "Try again in a moment.")
        return members[name]

    def refuse_when_ending(self) -> None:
        """Refuse requests that a group cannot serve while it ends.

        Raises:
            DispatcherError: the group is ending.
        """
        if self.group.ending:
            raise DispatcherError("the group is ending")

    # Descriptions.

    def take_description(self, member: Member, answer: Answer) -> None:
        """Keep the plugin's declarations; without them the dispatcher is BROKEN."""
        member.description = answer.description
        if answer.description is None:
            text = answer.broken or answer.refused or ""
            member.cell.set_error(without_frames(text))
            if member.state is not State.PAUSED:
                member.set_state(State.BROKEN)
            self.group.merger.say("ERROR", f"dispatcher is broken: {text}", dispatcher=member.name)

    def checked_for_circles(self, member: Member, answer: Answer) -> Answer:
        """Return *answer*, or a refusal if its ``after`` would create a cycle of waiting dispatchers."""
        if answer.description is not None:
            after = self.group.after() | {member.name: answer.description.after}
            try:
                in_order(after)
            except ConfigError as error:
                return Answer(refused=str(error), advice=error.advice)
        return answer

    def describe_again(self, member: Member, question: Question, what: str) -> None:
        """Describe a changed plugin, or one with other options, and adopt its answer; *what* names the change."""
        self.questions.ask(question, partial(self.on_described_again, member, question, what))

    def on_described_again(self, member: Member, question: Question, what: str, answer: Answer) -> None:
        if self.group.ending or self.group.members.get(member.name) is not member:
            return
        answer = self.checked_for_circles(member, answer)
        if answer.description is None:
            text = answer.broken or answer.refused or ""
            self.group.merger.say("ERROR", f"{what} not used: {text}", dispatcher=member.name)
            # A running process has the old plugin in memory and continues with it.
            if member.pid is None:
                member.cell.set_error(without_frames(text))
                member.entry = question.entry
            return
        member.description = answer.description
        member.entry = question.entry
        member.options = question.options
        self.group.announce()
        if member.pid is not None:
            self.group.stop(member, State.STARTING)
        elif member.state in (State.BROKEN, State.FATAL):
            member.backoff.forgive()
            self.group.start(member)

    def rescan_installed(self) -> None:
        """Scan the installed plugins again: restart changed dispatchers, and retry broken ones."""
        importlib.invalidate_caches()
        installed = installed_dispatchers()
        for member in list(self.group.members.values()):
            found = installed.get(member.entry.plugin)
            if found is None:
                self.group.merger.say("WARNING", "the dispatcher was uninstalled", dispatcher=member.name)
                continue
            entry = found.named(member.name)
            try:
                entry.check()
            except ConfigError as error:
                self.group.merger.say("ERROR", str(error), dispatcher=member.name)
                continue
            if entry == member.entry and member.state is not State.BROKEN and not entry.editable:
                continue
            self.describe_again(member, Question(entry, member.options), "the changed plugin is")

    # Joining and leaving.

    def attach_installed(
        self,
        name: str,
        plugins: Mapping[str, str],
        options: dict[str, object],
        done: Callable[[ReputError | None], None],
    ) -> None:
        """Add a dispatcher as currently installed; calls *done* with None, or with the error.

        Raises:
            ConfigError: it is not installed, or all slots are taken.
            DispatcherError: it is in the group already, or the group is ending.
        """
        importlib.invalidate_caches()
        (entry,) = select_dispatchers([name], plugins)
        self.attach(entry, options, done)

    def attach(
        self, entry: CatalogueEntry, options: dict[str, object], done: Callable[[ReputError | None], None]
    ) -> None:
        """Add a dispatcher; see `attach_installed`."""
        name = entry.name
        self.refuse_when_ending()
        present = self.group.members.get(name)
        if present is not None and present.leaving:

            def come_back() -> None:
                try:
                    self.attach(entry, options, done)
                except ReputError as error:
                    done(error)

            present.when_left.append(come_back)
            return
        if present is not None:
            raise DispatcherError(f"dispatcher is attached already: dispatcher={name}")
        member = self.group.add_member(entry, options)
        member.joining = True

        def described(answer: Answer) -> None:
            member.joining = False
            try:
                self.refuse_when_ending()
                answer.declared()
                member.description = answer.description
                in_order(self.group.after())
            except ReputError as error:
                self.group.forget_member(member)
                done(error)
                return
            # Tell the owner first: its frames must carry what the new dispatcher needs.
            self.group.announce()
            self.group.start(member)
            self.group.restart_successors(member.name)
            done(None)

        self.questions.ask(member.question, described)

    def detach(self, member: Member) -> None:
        """Take a dispatcher out of the group.

        Raises:
            DispatcherError: its view is being rebuilt.
        """
        if member.in_rebuild:
            raise DispatcherError(f"the view is being rebuilt: dispatcher={member.name}")
        self.group.detach(member)

    def configure(self, change: ConfigurationChange) -> None:
        """Adopt a changed configuration; the log says what cannot be adopted."""
        say = self.group.merger.say
        if change.refused is not None:
            say("ERROR", f"the changed configuration is not used: {change.refused}")
            return
        for name in change.removed:
            if name in self.group.members:
                try:
                    self.detach(self.member(name))
                except DispatcherError as error:
                    say("ERROR", f"the dispatcher stays: {error}", dispatcher=name)
        for name in change.added:
            if name not in self.group.members or self.group.members[name].leaving:
                done = partial(self.say_attached, name)
                try:
                    self.attach_installed(name, change.plugins, change.options.get(name, {}), done)
                except ReputError as error:
                    done(error)
        for name, options in change.options.items():
            member = self.group.members.get(name)
            if member is not None and member.options != options:
                # An upgrade may change plugin and options together; the new plugin checks the new options.
                installed = installed_dispatchers().get(member.entry.plugin, member.entry)
                self.describe_again(member, Question(installed.named(name), options), "the changed options are")
        if change.waiting:
            say("WARNING", f"changed settings hold when the store is opened next: settings={','.join(change.waiting)}")

    def say_attached(self, name: str, error: ReputError | None) -> None:
        """Log whether a newly enabled dispatcher has joined."""
        if error is None:
            self.group.merger.say("INFO", "the dispatcher was attached", dispatcher=name)
        else:
            self.group.merger.say("ERROR", f"the dispatcher is not attached: {error}", dispatcher=name)
