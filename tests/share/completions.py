"""The shells' scripts, made from the commands: nothing of streamd runs for a Tab, but to ask for the names of streams.

Each script finds out which command is typed (COMMANDS are their words, VALUED the options that take a value) and at
which of its places the cursor is, and offers what is wanted there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Final

from commands import ANYTHING, FILE, FOLDER, STREAMS, Command, Option

_BASH: Final = dedent("""\
    # Completion of PROGRAM for bash. Written by scripts/manual, from the commands themselves.
    FUNCTION() {
        local current before= command= found= word
        local -i place=0
        local -a words
        # Bash's own words end at every colon.
        read -a words <<<"${COMP_LINE:0:COMP_POINT}."
        current=${words[-1]%.}
        for word in "${words[@]:1:${#words[@]}-2}"; do
            if [[ $before ]]; then
                before=
                continue
            fi
            case $word in
            VALUED) before=$word ;;
            -*) ;;
            *)
                case "$command $word" in
                COMMANDS) command="$command $word" place=0 ;;
                *) place+=1 ;;
                esac
                ;;
            esac
        done
        case $current in
        --*=*) before=${current%%=*} current=${current#*=} ;;
        -*) [[ $before ]] || before=- ;;
        esac
        case "$command:${before:-$place}" in
    PLACES
        esac
        case $found in
        '<file>') compopt -o default ;;
        '<folder>') compopt -o dirnames ;;
        '<streams>')
            word=${COMP_WORDS[0]/#\\~\\//$HOME/}
            found=$("${word%-train}" streams "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
            ;;
        esac
        [[ $found == '<'* ]] || mapfile -t COMPREPLY < <(compgen -W "$found" -- "$current")
    }
    complete -F FUNCTION PROGRAM
    """)

_ZSH: Final = dedent("""\
    #compdef PROGRAM
    # Completion of PROGRAM for zsh. Written by scripts/manual, from the commands themselves.
    compdef FUNCTION PROGRAM

    FUNCTION_streams() {
        local -a names
        names=(${(f)"$("${program%-train}" streams "$BUFFER" 2>/dev/null)"})
        compadd -a names
    }

    FUNCTIONS
    FUNCTION() {
        local program=${${(Q)words[1]}/#\\~\\//$HOME/}
        FUNCTION_of
    }

    # It is read where the shell looks for it, and then called at once; or evaluated, and called later.
    [[ $funcstack[1] != FUNCTION ]] || FUNCTION "$@"
    """)

_FISH: Final = dedent("""\
    # Completion of PROGRAM for fish. Written by scripts/manual, from the commands themselves.
    function FUNCTION_at --argument-names wanted at --description 'whether that command is typed, up to that place'
        set --local command ''
        set --local place 0
        set --local before ''
        for word in (commandline --tokenize --current-process --cut-at-cursor)[2..]
            if test -n "$before"
                set before ''
                continue
            end
            switch $word
                case VALUED
                    set before $word
                case '-*'
                case '*'
                    if contains -- "$command $word" COMMANDS
                        set command "$command $word"
                        set place 0
                    else
                        set place (math $place + 1)
                    end
            end
        end
        test "$command" = "$wanted"; and test "$at" = '' -o "$at" = $place
    end

    function FUNCTION_streams
        set --local program (string replace --regex '^~/' $HOME/ (commandline --tokenize --current-process)[1])
        set program (string replace --regex -- '-train$' '' $program)
        $program streams (commandline --cut-at-cursor | string collect) 2>/dev/null
    end

    complete --command PROGRAM --no-files
    PLACES
    """)


def bash(program: str, root: Command) -> str:
    """For bash, with or without the package bash-completion; files and folders are readline's own affair."""
    places = "\n".join(f"    {_quoted(key)}) found={_quoted(found)} ;;" for key, found in _bash_places(root))
    commands = "|".join(_quoted(_words(each)) for each in root.walk() if each.path)
    return _filled(_BASH, program, PLACES=places, COMMANDS=commands or "''", VALUED="|".join(_valued(root)))


def _bash_places(root: Command) -> Iterator[tuple[str, str]]:
    """What there is to choose from behind `command:place`, `command:--option`, and for options behind `command:-`."""
    for command in root.walk():
        key = _words(command)
        if command.commands:
            yield f"{key}:0", " ".join(each.path[-1] for each in command.commands)
        for place, argument in enumerate(command.arguments):
            yield f"{key}:{place}", argument.wanted
        for option in command.options:
            for name in option.names:
                if option.wanted:
                    yield f"{key}:{name}", option.wanted
        yield f"{key}:-", " ".join(name for option in command.options for name in option.names)


def zsh(program: str, root: Command) -> str:
    """For zsh: its own _arguments, a function a command."""
    functions = [_zsh_function(program, each) for each in root.walk()]
    return _filled(_ZSH, program, FUNCTIONS="\n".join(functions))


def _zsh_function(program: str, command: Command) -> str:
    name = "".join([_function(program), "_of", *(f"_{word}" for word in command.path)])
    specs = [_zsh_option(option) for option in command.options]
    specs += [
        _quoted(f"{place}:{_colons(argument.name)}:{_zsh_action(program, argument.wanted)}")
        for place, argument in enumerate(command.arguments, 1)
    ]
    if not command.commands:
        lines = ["_arguments \\", *(f"    {spec} \\" for spec in specs)]
        return _indented(f"{name}() {{", [*lines[:-1], lines[-1].removesuffix(" \\")])
    known = [f"    {_quoted(f'{each.path[-1]}:{each.summary}')}" for each in command.commands]
    specs += ["'1:command:->command'", "'*::argument:->argument'"]
    below = [f"{each.path[-1]}) {name}_{each.path[-1]} ;;" for each in command.commands]
    lines = [
        "local -a commands line", "local state", "commands=(", *known, ")", "_arguments -C \\",
        *(f"    {spec} \\" for spec in specs[:-1]), f"    {specs[-1]}",
        "case $state in", "command) _describe command commands ;;",
        "argument)", "    case $words[1] in", *(f"    {each}" for each in below), "    esac", "    ;;", "esac",
    ]  # fmt: skip
    return _indented(f"{name}() {{", lines)


def _zsh_option(option: Option) -> str:
    told = "[" + _help(option).replace("]", r"\]") + "]"
    if option.value:
        told += f":{_colons(option.value)}:{_zsh_action('streamd', option.wanted)}"
    names = [name + ("=" if name.startswith("--") else "+") * bool(option.value) for name in option.names]
    if len(names) > 1:
        return f"{_quoted('({})'.format(' '.join(option.names)))}{{{','.join(names)}}}{_quoted(told)}"
    return _quoted(("*" if option.repeats else "") + names[0] + told)


def _zsh_action(program: str, wanted: str) -> str:
    marks = {FILE: "_files", FOLDER: "_files -/", STREAMS: f"{_function(program)}_streams", ANYTHING: " "}
    return marks.get(wanted, f"({wanted})")


def fish(program: str, root: Command) -> str:
    """For fish: one `complete` for each thing that may come."""
    commands = " ".join(_quoted(_words(each)) for each in root.walk() if each.path)
    places = "\n".join(f"complete --command {program} {place}" for place in _fish_places(program, root))
    return _filled(_FISH, program, PLACES=places, COMMANDS=commands or "''", VALUED=" ".join(_valued(root)))


def _fish_places(program: str, root: Command) -> Iterator[str]:
    at = f"{_function(program)}_at"
    for command in root.walk():
        key = _quoted(_words(command))
        for each in command.commands:
            yield f'--condition "{at} {key} 0" --arguments {each.path[-1]} --description {_fish_quoted(each.summary)}'
        for place, argument in enumerate(command.arguments):
            if argument.wanted:
                yield f'--condition "{at} {key} {place}" {_fish_wanted(program, argument.wanted)}'
        for option in command.options:
            names = " ".join(
                f"--long-option {name[2:]}" if name.startswith("--") else f"--short-option {name[1:]}"
                for name in option.names
            )
            takes = " --require-parameter" if option.wanted == FILE else " --exclusive"
            value = f"{takes} {_fish_wanted(program, option.wanted)}" if option.value else ""
            yield f'--condition "{at} {key}" {names}{value} --description {_fish_quoted(_help(option))}'.replace(
                "  ", " "
            )


def _fish_wanted(program: str, wanted: str) -> str:
    if wanted == FILE:
        return "--force-files"
    marks = {FOLDER: "(__fish_complete_directories)", STREAMS: f"({_function(program)}_streams)"}
    return f"--arguments {_quoted(marks.get(wanted, wanted))}" if wanted else ""


def _filled(template: str, program: str, **marks: str) -> str:
    for mark, text in marks.items():
        template = template.replace(mark, text)
    return template.replace("FUNCTION", _function(program)).replace("PROGRAM", program)


def _function(program: str) -> str:
    return f"_{program.replace('-', '_')}"


def _words(command: Command) -> str:
    """The words that lead to it, each behind a blank."""
    return "".join(f" {word}" for word in command.path)


def _valued(root: Command) -> list[str]:
    """The options that take a value; in no command may one of them be a switch."""
    options = [option for command in root.walk() for option in command.options]
    valued = {name for option in options if option.value for name in option.names}
    switches = {name for option in options if not option.value for name in option.names}
    assert not valued & switches, f"{valued & switches}: the scripts look at options without asking whose they are"
    return sorted(valued)


def _help(option: Option) -> str:
    """Without the default and the bounds that help adds."""
    return option.help.partition("  [")[0].removesuffix(".")


def _indented(first: str, lines: list[str]) -> str:
    return "\n".join([first, *(f"    {line}" for line in lines), "}", ""])


def _colons(text: str) -> str:
    return text.replace(":", r"\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"


SCRIPTS: Final[dict[str, Callable[[str, Command], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
