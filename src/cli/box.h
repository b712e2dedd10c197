/* box.h - the model in the box: models/demo.gguf of the checkout. */
#ifndef HOLDFAST_CLI_BOX_H
#define HOLDFAST_CLI_BOX_H

#include "base/base.h"

enum { BOX_PATH_MAX = 4096 };

/* Where it is: in ./models, else two directories above the program, which is in build/PRESET.  False when
 * it is in neither. */
bool box_find(char path[BOX_PATH_MAX]);

/* For a command that was given no -m: puts the box's path (in a static buffer) into *model and says so on
 * stderr; false, with what to do instead, when there is none. */
bool box_default(const char *command, const char **model);

#endif
