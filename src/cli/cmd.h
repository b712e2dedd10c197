/* cmd.h - the subcommands.  Each takes its own argv (argv[0] is its name) and returns the exit
 * status: 0 fine, 1 failed, 2 wrong usage.
 */
#ifndef HOLDFAST_CLI_CMD_H
#define HOLDFAST_CLI_CMD_H

int cmd_bench(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_experiment(int argc, char **argv);
int cmd_forensics(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_make_model(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_version(int argc, char **argv);

#endif
