/* topkctl: the control tool. Each command is one function (ctl.h). */
#include "ctl.h"
#include "json.h"
#include "topkd_wire.h"

#include <stdio.h>

enum ctl_exit command_version(const struct ctl_options *options)
{
    if (options->json) {
        struct json json = json_of(stdout);
        json_open_object(&json, NULL);
        json_string(&json, "topkctl", TOPKCTL_VERSION);
        json_string(&json, "libtopkd", topkd_version());
        json_u64(&json, "wire", WIRE_VERSION);
        json_close_object(&json);
        json_end(&json);
    } else {
        printf("topkctl %s, libtopkd %s, wire version %u\n", TOPKCTL_VERSION, topkd_version(),
               WIRE_VERSION);
    }
    return CTL_EXIT_OK;
}

int main(int argc, char **argv)
{
    static enum ctl_exit (*const functions[])(const struct ctl_options *) = {
#define COMMAND_FUNCTION(name, word, operand, function, text) function,
        CTL_COMMAND_TABLE(COMMAND_FUNCTION)
#undef COMMAND_FUNCTION
    };
    struct ctl_options options;
    bool done = false;
    enum ctl_exit code = options_parse(argc, argv, &options, &done);
    if (code == CTL_EXIT_OK && !done) {
        code = functions[options.command](&options);
    }
    /* Output that could not be written (a full disk) is a failure too. */
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        perror("topkctl: writing to standard output");
        return CTL_EXIT_FAILED;
    }
    return (int)code;
}
